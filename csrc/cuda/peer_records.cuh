/* Records: 16 bytes with 8 of payload, which say by themselves that they have come.
 *
 * A record is {word, epoch, word, epoch}. GPUs write and read each half of it at once, as NCCL's LL protocol relies on,
 * too. So a reader needs no flag and a writer no fence, which is what small messages take longest for. Memory of
 * records holds nothing else, hence an epoch that is found there is that of its word. Words that are 2^32 launches old
 * look new: a size must not come back after exactly so many. */
#ifndef NK_PEER_RECORDS_CUH
#define NK_PEER_RECORDS_CUH

#include "peer_wait.cuh"

/* Where an arena has the launch's records of rank `from`, if each rank has `each` of them. */
__device__ inline uint4 *records_of(uint8_t *arena, const peer_launch &l, int from, int64_t each)
{
    return (uint4 *)(arena + peer_records_at(l.epoch & 1)) + from * each;
}

__device__ inline void send_record(uint4 *at, const uint2 &payload, uint32_t epoch)
{
    st_volatile_v4(at, make_uint4(payload.x, epoch, payload.y, epoch));
}

/* Waits for the records at[i] of ranks from[i], all at once; for none where at[i] is NULL. False where one does not
 * come. */
template <int N>
__device__ inline bool receive_records(const nk_peer_group &g, peer_launch &l, const int (&from)[N],
                                       const uint4 *const (&at)[N], uint2 (&payload)[N])
{
    for (uint32_t looks = 1;; looks++) {
        int missing = -1;
        uint4 v[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            if (at[i]) v[i] = ld_volatile_v4(at[i]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (!at[i]) continue;
            payload[i] = make_uint2(v[i].x, v[i].z);
            if (v[i].y != l.epoch || v[i].w != l.epoch) missing = from[i];
        }
        if (missing < 0) return true;
        if (gives_up(g, l, missing, looks)) return false;
    }
}

#endif
