/* Errors as values: the binding alone turns them into exceptions. */
#ifndef NK_STATUS_H
#define NK_STATUS_H

typedef enum nk_status {
    NK_OK = 0,
    NK_VALUE_ERROR,   /* a shape, size, layout or option that does not fit */
    NK_TYPE_ERROR,    /* a dtype that does not fit */
    NK_BACKEND_ERROR, /* what this machine or this build cannot do */
    NK_NEEDS_WORKSPACE,
    NK_INTERRUPTED, /* the caller's `interrupted` said so: outputs hold anything */
    NK_DECLINED, /* from a plan: this row has no kernel for the problem, a later row may have one */
} nk_status;

/* The message of this thread's last failure. */
const char *nk_status_message(void);

/* Records the message and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
nk_status nk_fail(nk_status status, const char *format, ...);

#define NK_TRY(call)                                        \
    do {                                                    \
        nk_status nk_try_status_ = (call);                  \
        if (nk_try_status_ != NK_OK) return nk_try_status_; \
    } while (0)

#define NK_CHECK(condition, status, ...)                         \
    do {                                                         \
        if (!(condition)) return nk_fail((status), __VA_ARGS__); \
    } while (0)

#endif
