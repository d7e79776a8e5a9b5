/* The message of a thread's last failure. */
#include "nk_status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[512];

const char *nk_status_message(void) { return message; }

nk_status nk_fail(nk_status status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    return status;
}
