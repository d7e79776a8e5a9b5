/* A GPU in software: PTX text in, the effects of its kernels on memory out, with the asynchrony of the machine made
 * adversarial and every step checked. It stands behind the CUDA driver API (driver.c).
 *
 *   lex.c parse.c        PTX text -> statements, registers, labels, variables of one kernel (ptx.h)
 *   registers.c          registers that can share a place
 *   decode*.c flow.c     statements -> insn: a function, operands resolved to offsets, rejoin points of branches
 *   exec_*.c             those functions; one executes one instruction for the 32 lanes of a warp under a mask
 *   machine.c fragment.c launches, CTAs, the schedule that a seed draws, divergence and rejoining, deadlocks
 *   memory.c shadow.c order.c stores.c flags.c   address spaces with bounds; what was written, by whom, ordered by what
 *   traffic.c            what L2 sees of global memory
 *   barrier.c cluster.c mbarrier.c flight.c   barriers of all kinds; asynchronous operations and when they land
 *   wgmma.c num_*.c      tensor cores; arithmetic, conversions and layouts as pure functions
 *   tmem.c tmem_order.c tmem_alloc.c exec_tmem.c tcgen05.c tcgen05_mma.c   tensor memory and what sm_100 does with it
 *   cancel.c             cluster launch control
 *   scopes.c             what releases and acquires of more than a CTA are needed for
 *   report.c             findings with their place: kernel, PTX line, source line, CTA, warp, lane
 *
 * Registers are vectors: a 32-bit register of a warp is uint32_t[32], a 64-bit one uint64_t[32], a 16-bit one
 * uint16_t[32], a predicate one uint32_t of 32 bits. Constants are such vectors too, shared by all warps. A warp is a
 * set of fragments, lanes with one program counter; fragments advance independently and rejoin at the immediate
 * post-dominator of the branch that parted them. docs/simulator.md says what is modelled and what is not. */
#ifndef PTXSIM_SIM_H
#define PTXSIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define LANES 32
#define ALL_LANES 0xffffffffu
#define MAX_WARPS 32
#define MAX_FRAGMENTS 64
#define MAX_BARRIERS 16
#define MOST_PEERS 16
#define PORTABLE_PEERS 8 /* more CTAs in a cluster must be asked for */
#define NONE UINT32_MAX
#define FIRST_SPECIAL 64 /* special registers come first; place 0 is no register */
#define POISON_BYTE 0x7f /* NaN in fp16 and e4m3, enormous in bf16 and fp32, far out of bounds as an index */

typedef struct run run;
typedef struct insn insn;
typedef struct program program;
typedef struct launch launch;
typedef struct cta cta;
typedef struct warp warp;
typedef struct cluster cluster;
typedef struct module module;

/* What an instruction did with its fragment. */
typedef enum step {
    STEP_NEXT,  /* on to the following instruction */
    STEP_JUMP,  /* the program counter is set, or the fragment is gone */
    STEP_WAIT,  /* the fragment waits; whoever wakes it advances it */
    STEP_YIELD, /* try the same instruction again later */
    STEP_SLEEP, /* done; let others run */
    STEP_FAIL,  /* the launch is over */
} step;

typedef step op_fn(run *r, const insn *in);

typedef enum space { GENERIC, GLOBAL, SHARED, CLUSTER, LOCAL, PARAM, CONSTANT } space;

struct insn {
    op_fn *fn;
    uint32_t o[5];   /* operands: destination first; offset_of() a vector, or a predicate's index */
    uint32_t n_list; /* operands in braces, all of them in order */
    uint32_t *list;
    int64_t imm;         /* of an address: the displacement */
    uint32_t target;     /* of a branch */
    uint32_t rejoin;     /* of a branch: where both ways meet again, NONE at the exit */
    uint32_t guard;      /* predicate index, NONE: always */
    uint32_t line, loc;  /* of the PTX; index into program.locs */
    uint32_t columns;    /* of wgmma: n */
    uint32_t used_bytes; /* of a load: those that anybody looks at */
    uint16_t place;      /* of a release or an acquire of more than a CTA: in program.scoped, from 1 on */
    uint8_t space, size, vec, reg_size, op, type, a_type, flags;
    bool guard_not, is_signed, whole_warp;
};

typedef struct source_loc {
    uint32_t file, line, at_file, at_line; /* at_*: where it was inlined, 0: not */
} source_loc;

typedef struct param {
    uint32_t offset, size;
} param;

#define FIRST_SHARED_BASE (FIRST_SPECIAL + 128 * SR_COUNT)
#define MOST_SHARED_BASES 32
#define FIRST_REGISTER (FIRST_SHARED_BASE + 256 * MOST_SHARED_BASES)

/* Where a special register lives in a warp's registers, 0: not used. */
typedef enum special {
    SR_TID_X,
    SR_TID_Y,
    SR_TID_Z,
    SR_NTID_X,
    SR_NTID_Y,
    SR_NTID_Z,
    SR_CTAID_X,
    SR_CTAID_Y,
    SR_CTAID_Z,
    SR_NCTAID_X,
    SR_NCTAID_Y,
    SR_NCTAID_Z,
    SR_LANEID,
    SR_WARPID,
    SR_NWARPID,
    SR_SMID,
    SR_NSMID,
    SR_LANEMASK_EQ,
    SR_LANEMASK_LE,
    SR_LANEMASK_LT,
    SR_LANEMASK_GE,
    SR_LANEMASK_GT,
    SR_CLUSTERID_X,
    SR_CLUSTERID_Y,
    SR_CLUSTERID_Z,
    SR_NCLUSTERID_X,
    SR_NCLUSTERID_Y,
    SR_NCLUSTERID_Z,
    SR_CLUSTER_CTAID_X,
    SR_CLUSTER_CTAID_Y,
    SR_CLUSTER_CTAID_Z,
    SR_CLUSTER_NCTAID_X,
    SR_CLUSTER_NCTAID_Y,
    SR_CLUSTER_NCTAID_Z,
    SR_CLUSTER_CTARANK,
    SR_CLUSTER_NCTARANK,
    SR_DYNAMIC_SMEM,
    SR_TOTAL_SMEM,
    SR_COUNT
} special; /* clang-format: one row a group would be three times as long */

#define MOST_SCOPED 32000 /* a place is 15 bits (checks/clocks.h) */

/* A release or an acquire of more than a CTA: how often it was executed, and how often less would not have done. */
typedef struct scoped {
    char opcode[64];
    uint32_t line, loc;
    uint64_t executed, needed; /* atomic */
} scoped;

typedef struct shared_base {
    uint32_t address, place;
    char width;
} shared_base;

/* What a fence of the generic and the asynchronous proxy is for. */
enum { FENCE_SHARED_CTA = 1, FENCE_SHARED_CLUSTER = 2, FENCE_GLOBAL = 4, FENCE_INITS = 8 };

struct program {
    char *name;
    module *module;
    insn *code;
    uint32_t n_code;
    uint8_t *constants;
    uint32_t constant_bytes, register_bytes, n_predicates;
    uint32_t special[SR_COUNT];
    param *params;
    uint32_t n_params, param_bytes;
    uint32_t static_smem, dynamic_smem_at, local_bytes;
    uint32_t max_threads, cluster[3];
    uint32_t cta_group;        /* of its tcgen05 instructions, 0: none */
    uint32_t fences;           /* FENCE_*: what its proxy fences cover, all together */
    bool loads_async;          /* global memory, by bulk copies or tiles */
    bool relaxes;              /* it has relaxed arrivals */
    uint32_t n_scoped;         /* insn.place */
    scoped *scoped;            /* what is counted of them */
    shared_base *shared_bases; /* registers that hold addresses in shared memory */
    uint32_t n_shared_bases;
    source_loc *locs;
    uint32_t n_locs;
    int max_dynamic_smem; /* what the host allowed */
};

/* Lanes of one warp that share a program counter, or a place where such lanes gather. */
typedef enum fragment_state { FREE, READY, WAITING, JOINING } fragment_state;
typedef enum wait_reason { W_NONE, W_GANG, W_BARRIER, W_CLUSTER, W_MBARRIER, W_ASYNC, W_REGISTERS, W_TMEM } wait_reason;

typedef struct fragment {
    uint8_t state, reason;
    int8_t parent; /* the join to go to at `rejoin`, -1: none */
    uint32_t mask, pc;
    uint32_t rejoin;
    uint32_t arrived; /* of a join */
    uint64_t what;    /* of a wait: barrier number, address, group */
    uint64_t phase;
} fragment;

typedef struct copy copy;

struct warp {
    cta *cta;
    uint32_t index, live;
    uint32_t waited; /* lanes that have been through griddepcontrol.wait */
    uint8_t *registers;
    uint32_t *predicates;
    uint8_t *local;
    int weight;
    int n_fragments; /* one past the last in use */
    fragment fragments[MAX_FRAGMENTS];
    copy *copies; /* cp.async under way, oldest first */
    uint32_t n_copies, most_copies;
    uint32_t groups[LANES]; /* committed so far */
    struct bulk_groups *bulk;
    struct wgmma_queue *wgmma;
    uint32_t register_share;           /* of a thread, as setmaxnreg counts */
    uint32_t at_cluster, owes_cluster; /* lanes that wait for others there; that arrived and did not wait yet */
};

typedef struct named_barrier {
    uint32_t arrived, expected; /* threads; expected 0: idle, NONE: all that live */
    uint32_t generation;
    struct clock_set *order;
} named_barrier;

struct cta {
    launch *launch;
    uint32_t id[3], number, rank, n_threads, n_warps, live;
    uint8_t *smem;
    uint32_t smem_bytes;
    warp *warps;
    named_barrier barriers[MAX_BARRIERS];
    struct shadow *shadow;
    int weight;
    bool done;
    uint32_t spare_registers; /* that setmaxnreg.dec gave back, a thread's share of a warp each */
    cluster *cluster;
    struct mbarrier *mbarriers;
    uint32_t n_mbarriers;
    struct tmem *tmem;     /* NULL: not used so far */
    bool cancelled_enough; /* was told that no cluster is left to cancel */
};

/* CTAs that run side by side; one of a single CTA where the launch says nothing. */
struct cluster {
    uint32_t n;
    cta *ctas[MOST_PEERS];
    uint32_t arrived; /* threads at barrier.cluster */
    bool met;         /* all of its threads have been at barrier.cluster */
    struct clock_set *order, *done;
    struct acquisitions *acquisitions; /* flags.c */
    struct flight *flights; /* asynchronous operations under way */
    uint32_t n_flights, most_flights;
};

typedef struct dims {
    uint32_t x, y, z;
} dims;

#define MOST_STATES 8 /* of a warp: wait_reason and more to come */

typedef struct stats {
    uint64_t warp_insns, lane_insns, global_loads, global_load_bytes, global_stores, global_store_bytes, mmas, barriers;
    uint64_t async_bytes, ctas, tma_bytes, l2_read_bytes, l2_write_bytes, touched_bytes, shared_wavefronts;
    uint64_t data_waits, stages;   /* instructions that wait for copies; the sum of copies under way then */
    uint64_t samples[MOST_STATES]; /* what warps were doing at regular times: ready, or a wait_reason */
    uint64_t slept[MAX_WARPS];     /* by the warp's number: how often lanes of it fell asleep at an mbarrier */
} stats;

/* The last request to L2: sectors that a warp's instruction has asked for. */
#define SECTORS_KEPT 64
typedef struct sectors {
    uint64_t since, newest, highest, kept[SECTORS_KEPT];
    uint32_t n;
} sectors;

struct launch {
    const program *program;
    dims grid, block, cluster;
    uint32_t smem_bytes, resident;
    bool overlaps; /* may begin before the kernel before it has ended */
    const uint8_t *params;
    const void *mma;              /* of the device's tensor cores */
    const struct extent *extents; /* live memory, sorted */
    uint32_t n_extents;
    uint64_t *first_bits, *touched, n_touched; /* traffic.c: by extent; a bit for each sector */
    struct stores *stores;                     /* stores.c; NULL: nothing asks for them */
    struct flags *flags;                       /* flags.c, with scopes */
    uint64_t seed;
    uint32_t number;       /* since the seed was set */
    uint64_t next_cluster; /* atomic */
    int failed;            /* atomic */
    char error[2400];
    stats stats;
};

/* One worker thread's place in a launch. */
struct run {
    launch *launch;
    const program *program;
    cta *cta;
    warp *warp;
    fragment *fragment;
    uint8_t *base[2]; /* the warp's registers, the program's constants */
    uint32_t *predicates;
    uint32_t mask; /* lanes that execute */
    int lane;      /* of an error, -1: the warp's */
    uint64_t random;
    uint64_t lo, hi, first_bit; /* the extent used last */
    uint32_t extent;
    sectors sectors;
    bool uncounted; /* a copy of what L2 was asked for already */
    uint64_t idle_steps, turns;
    stats stats;
};

static inline void *at(const run *r, uint32_t operand) { return r->base[operand & 1] + (operand & ~1u); }

/* splitmix64 */
static inline uint64_t sim_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The device that the environment describes (PTXSIM_*). */
typedef struct config {
    int capability, sms, ctas_per_sm, smem_per_cta, smem_per_sm, threads_per_sm, threads;
    uint64_t seed, spin_limit;
    uint32_t launches; /* since the seed was set; atomic */
    bool check_races, check_init, check_scopes, tmem_anywhere, cp_behind_mma, fenced_stores, zeros_win;
    bool count_wavefronts;
    const char *launches_to; /* a file that lists launches in place of running them, or NULL */
} config;

extern config sim_config;
void sim_configure(void);

/* Clusters of several CTAs, and multicast to them. ptxas takes both for capability 12; its libraries forbid them. */
static inline bool sim_has_clusters(void) { return sim_config.capability >= 90 && sim_config.capability / 10 != 12; }

#endif
