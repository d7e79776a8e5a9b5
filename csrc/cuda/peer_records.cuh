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

/* Waits for a record from rank `from`. False where it does not come. */
__device__ inline bool receive_record(const nk_peer_group &g, peer_launch &l, int from, const uint4 *at,
                                      uint2 &payload)
{
    for (uint32_t looks = 1;; looks++) {
        const uint4 v = ld_volatile_v4(at);
        payload = make_uint2(v.x, v.z);
        if (v.y == l.epoch && v.w == l.epoch) return true;
        if (gives_up(g, l, from, looks)) return false;
    }
}

#endif
