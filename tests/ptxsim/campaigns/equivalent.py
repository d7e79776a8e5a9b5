"""Why a mutant that nothing notices is no error, or none that the simulated GPU can see."""

TOGETHER = "lanes rejoin behind a branch here, which ptxas does not promise"

REMOTE = "arrivals at another CTA's mbarrier are there at once, which hardware does not promise"
READ = "only what ordinary stores wrote must be fenced here, not what loads have read"
LAST = "of those who read a response the last is remembered, and it may not be this one"
OF_TCGEN05 = {
    "no warp barrier, sm100_gemm_sums.cuh: __syncwarp(); #pragma unroll": TOGETHER,
    "no warp barrier, sm100_gemm.cuh: __syncwarp(); meet<C>();": TOGETHER,
    "no warp barrier, sm100_gemm_store.cuh: __syncwarp(); if (threadIdx.x % 32 == 0)"
    " mbarrier_arrive_cluster_relaxed(of_issuer<C>(&s.sums_empty[r.slot], tiles));": (
        "the wait for loads before it is one instruction of the whole warp"
    ),
    "no fence after, sm100_gemm_parts.cuh: tcgen05_fence_after_thread_sync(); }": (
        "where the issuer waits for its own products, their commit is enough for the simulator"
    ),
    "the cluster barrier releases nothing, sm100_gemm.cuh: barrier_cluster_arrive_aligned();"
    " barrier_cluster_wait_aligned();": REMOTE,
    "waits for the next barrier, sm100_gemm_parts.cuh: mbarrier_wait_cluster_relaxed("
    "shared_address(barrier), parity); tcgen05_fence_after_thread_sync();": (
        "the first of two accumulators waits until the second is empty: later, and for both"
    ),
    "the other comparison, sm100_gemm.cuh: } else if (warp == SM100_GEMM_PRODUCER)"
    " { if (elect_sync()) produce<C>(s, maps, p, tiles);": "warps 8 and 9 change places",
    "a constant more, sm100_gemm_load.cuh: const uint32_t full = shared_address(&s.full[r.slot]);"
    " wait_for<C>(&s.empty[r.slot], r.parity ^ 1);": (
        "whether batches share a matrix of columns: no draw's tokens do, those of test_tiles.py do"
    ),
    "a comparison off by one, sm100_gemm_store.cuh: if (o.whole && left >= i + 4)"
    " { store_four(at + i * o.next, dtype, v + i);": (
        "where three columns are left; of these few draws none ends so, test_tiles.py does"
    ),
    "a comparison off by one, sm100_gemm_store.cuh: const int64_t n = first + (i < left ? i : 0);"
    " v[i] = __fmaf_rn(tokens_on_lanes ? alpha_at(alphas, n) : alpha, __uint_as_float(sums[i]),": (
        "the alpha behind the last, of an element that nobody stores; draws have memory there"
    ),
    "no proxy fence, sm100_gemm_parts.cuh: fence_proxy_async();"
    " /* the next response overwrites this one */ if (!is_thread) __syncwarp();": READ,
    "arrives without releasing, sm100_gemm_parts.cuh:"
    " mbarrier_arrive_cluster(mapa(shared_address(&tiles.launch->empty[r.slot]), 0));"
    " r.advance();": LAST,
}

OF_SM100_KIND_F16 = OF_TCGEN05 | {
    "no fence after, sm100_gemm_parts.cuh: tcgen05_fence_after_thread_sync(); }": (
        "the issuer has another fence before its products"
    ),
    "no warp barrier, sm100_kind_f16.cuh: __syncwarp(); meet<C>();"
    " /* each role has a tcgen05 fence of its own behind its first wait */": TOGETHER,
    "no warp barrier, sm100_kind_f16.cuh: __syncwarp(); meet<C>();": TOGETHER,
    "no warp barrier, sm100_kind_f16_decode.cuh: __syncwarp(); tcgen05_st_32x32b_x32(lanes +"
    " decoded.slot * C::SLOT + matrix * SM100_KIND_F16_DECODED_COLUMNS, weights);": TOGETHER,
    "no warp barrier, sm100_kind_f16_decode.cuh: __syncwarp();"
    " mbarrier_arrive_if(lane == 0, shared_address(&s.empty[r.slot]));": (
        "the wait for stores before it is one instruction of the whole warp"
    ),
}

OF_SM100_EXPERTS = OF_SM100_KIND_F16 | {
    "no barrier, sm100_gemm.cuh: __syncthreads();"
    " tiles.count = s.experts[experts.count].first_tile * work.lane_tiles;": (
        "the scan of experts ends with one, too, and without experts nothing is launched"
    ),
    "the other choice, expert.cuh: if (i < warp) first_tile += (uint32_t)sums.x,"
    " first_atom += sums.y; tiles_before += (uint32_t)sums.x;": (
        "of atoms: tokens of 16 bits have no scale factors"
    ),
    "less for more, sm100_gemm_parts.cuh: const int middle = (low + high) / 2;"
    " const bool is_behind = tiles.experts[middle].first_tile <= column_tile;": (
        "what is added for the division is 0 for numbers from 0 on"
    ),
    "a constant more, convert.cuh: uint32_t magnitude = byte & 0x7F; return magnitude =="
    " NK_E4M3_NAN ? __uint_as_float(0x7FC00000) : __uint_as_float(magnitude << 20) * 0x1p120f;": (
        "whether a scale factor is NaN: no draw's are, those of test_tiles.py are"
    ),
}

OF_SM100_ROUTE = {
    "a comparison off by one, route_topk.cuh: const bool grouped = p.topk_group < p.n_group;"
    " if (grouped && p.n_group > FEW_GROUPS) return select_of_many_groups(p, s);": (
        "which of two ways selects, where both are right: all groups kept, 32 groups, 128 experts"
    ),
    "the cluster barrier releases nothing, sm100_route.cu: barrier_cluster_arrive_aligned();"
    " /* route_tokens() ends with lanes together */ barrier_cluster_wait_aligned();": (
        "it keeps memory there until others have read it; nobody reads what is behind it"
    ),
    "no wait for kernels before, sm100_route.cu: if (elect_sync()) load(at, &w, &x);"
    " __syncwarp();": "kernels run one after the other here, and the thread waits again",
    "waits without acquiring, sm100_route.cu: mbarrier_wait("
    "shared_address(&at.barriers.sums_full), 0); tcgen05_fence_after_thread_sync();": (
        "it tells of sums in tensor memory alone, and the fence behind it is enough for these"
    ),
}

OF_GEMV = {
    "no warp barrier, sm100_gemv_sums.cuh: __syncwarp();"
    " barrier_cluster_arrive_relaxed_aligned();": TOGETHER,
}

PAIRED = (
    "sm90_gemv.cu: pair_tokens(s, w, tokens, [&](const uint4 &v) { return as_halves.is_exact ?"
    " halves_of(v, as_halves.scale) : v; });"
)
HALVING = "sm90_gemv.cu: as_halves = halving_of_token(s, w); pair_tokens(s, w, tokens,"
CHUNK = (
    "const uint32_t ring = ring_of_warp();"
    " chunk_of_token at = first_chunk_of_thread(per_token, tokens);"
)
TEAM = (
    "sm90_gemv.cu: team_work w = work_of_team<ACCESS, TALL, 1>(p);"
    " constexpr bool COPIED = KIND != CODES && ACCESS != NARROW;"
)
OF_EXPERTS_GEMV = {
    f"the other bound, {TEAM}": "a CTA of experts has all of K",
    f"operands swapped, {TEAM}": "the rows of drawn weights begin in one atom",
    "the other comparison, sm90_gemv.cu: prepare_sums(s, tokens, partials);"
    " if (threadIdx.x < sizeof(sm90_gemv_head::zeros) / 16)"
    " smem[threadIdx.x] = make_uint4(0, 0, 0, 0);": (
        "experts have no clusters, and what prepares for them does no harm"
    ),
    **dict.fromkeys(
        (f"waits without acquiring, {PAIRED}", f"no wait at the mbarrier, {PAIRED}"),
        "halving_of_token() has waited for the same token",
    ),
    f"waits without acquiring, {HALVING}": "what a copy wrote is there once its bytes are counted",
    f"the other comparison, {HALVING}": "all lanes have what one of them adds",
    f"a comparison off by one, {PAIRED}": "no drawn token is so long and ends in such a step",
    f"less for more, sm90_gemv.cu: {CHUNK}": (
        "lanes take experts in another order, and what lies around offsets ends none"
    ),
    "a comparison off by one, sm90_gemv.cu: if (!enter_row(*experts, w)) return; }": (
        "what lies behind offsets ends no expert"
    ),
}

# By target, then by the mutation and the spoiled line of the source with the one after it: line
# numbers move.
EQUIVALENT = {
    "sm100_gemm": {
        "no warp barrier, sm100_gemm.cu: __syncwarp();"
        " tcgen05_ld_32x32b_x32(lanes + acc.slot * S::N + column, left);": TOGETHER,
        "no warp barrier, sm100_gemm.cu: __syncwarp(); barrier_cluster();": TOGETHER,
        "no warp barrier, sm100_gemm.cu: __syncwarp(); barrier_cluster();"
        " /* each role has a tcgen05 fence of its own behind its first wait */": TOGETHER,
        "the cluster barrier releases nothing, sm100_gemm.cu: barrier_cluster();"
        " if (warp == WARP_TMEM) tcgen05_dealloc<S::CTAS>(tmem, TMEM_COLUMNS);": REMOTE,
        "waits without acquiring, sm100_gemm.cu: wait(at.empty, r.slot, r.phase);"
        " advance<STAGES>(r);": "the producer's last waits keep its CTA there, nothing more",
        "no proxy fence, sm100_gemm.cu: fence_proxy_async();"
        " /* the next response may overwrite this one */ if (WARP) __syncwarp();": READ,
        "arrives without releasing, sm100_gemm.cu: if (!WARP || threadIdx.x % 32 == 0)"
        " mbarrier_arrive_cluster(mapa(at.clc_empty + 8 * slot, 0));"
        " advance<CLC_SLOTS>(w.responses);": LAST,
    },
    "sm100_kind_f16": OF_SM100_KIND_F16,
    **dict.fromkeys(("sm100_kind_f16_rows", "sm100_kind_f16_gated"), OF_SM100_EXPERTS),
    **dict.fromkeys(("sm90_experts", "sm90_experts_gated"), OF_EXPERTS_GEMV),
    "sm100_few": OF_GEMV,
    "sm100_gemv": OF_GEMV,
    "sm90_gemm": {
        f"{name}, sm90_gemm.cu: wait(s.full[c.from.slot], c.from.phase);"
        " wait(s.w_full[c.w.slot], c.w.phase);": (
            "the decoder has waited for the same barrier, and w_full says so"
        )
        for name in ("no wait at the mbarrier", "waits without acquiring")
    }
    | {
        "the cluster barrier releases nothing, sm90_gemm.cu: barrier_cluster_arrive();"
        " /* not .aligned, as the last: lanes of the load warp come one by one there */"
        " barrier_cluster_wait();": (
            "it tells of initialised mbarriers alone, and their fence is enough for that"
        )
    },
    "gemv": {
        "no barrier, sm80_gemv.cu: __syncthreads(); stage_vector<KIND>(p, l, segment, count);": (
            "the vector is staged once, and nobody has read before"
        ),
    },
    "route_sigmoid": {
        "no wait, sm80_route.cu: cp_async_wait_group<0>(); __syncthreads();": (
            "behind the last step only empty groups are left"
        ),
        "a group more under way, sm80_route.cu: cp_async_wait_group<0>(); __syncthreads();": (
            "behind the last step only empty groups are left"
        ),
        "no barrier, sm80_route.cu: __syncthreads(); }": (
            "K is split: the sums go to global memory"
        ),
        "no barrier, sm80_route_turns.cuh: __syncthreads(); if (threadIdx.x == 0) {": (
            "orders global memory only, where the simulator looks for no races"
        ),
        "no warp barrier, route_sort.cuh: __syncwarp(); }": (
            "behind a warp's last 32 entries nothing follows"
        ),
    },
    "sm90_gemv": {
        "no warp barrier, sm90_gemv_codes.cu: prepare_sums(s, 1, partials);"
        " fence_proxy_async();": TOGETHER,
    },
    "sm90_tiles": {
        f"no warp barrier, sm90_gemv_tiles.cu: {lines}": TOGETHER
        for lines in (
            "__syncwarp(); griddepcontrol_launch_dependents();",
            "__syncwarp(); if (s.early) begin_token();",
            "__syncwarp(); }",
            "prepare_inbox(s); const source from = source_of(p, w);",
        )
    },
    "sm90_few": {
        "no warp barrier, sm90_gemv.cu: prepare_sums(s, tokens, partials);"
        " if (threadIdx.x < sizeof(sm90_gemv_head::zeros) / 16)"
        " smem[threadIdx.x] = make_uint4(0, 0, 0, 0);": TOGETHER,
        "no warp barrier, sm90_gemv.cu: if (COPIED) prepare_tokens(tokens); prepare(w, ahead);": (
            "a lane makes the mbarrier that it uses; on hardware one lane makes them for all"
        ),
        "waits without acquiring, sm90_gemv.cu: pair_tokens(s, w, tokens); } else {": (
            "a copy is there for all once it is counted, which hardware does not promise"
        ),
    },
}

APART = "in PTX registers of a step are its own: nothing changes them before a later wait"
NEVER_FALLS = "offsets never fall, so the last end is the largest; only others make a difference"
TOKENS = "sm90_gemm_tokens.cu:"
THREAD = "return {l, m, is_there, id / 16, id / 4 % 4, id % 4};"
FOUND = (
    "const expert_tile found = find_expert<1>(scan, e.offsets, e.count, p.m, tile);"
    " const int64_t sf_row = found.atom_row * NK_SF_ATOM_ROWS + row - found.begin;"
)
DONE = "sm90_gemm.cuh: wgmma_wait_group<1>(sums); /* All products of the slot before are done."
AHEAD = (f"{DONE} */", f"{DONE} A __syncwarp here would make ptxas serialise products. */")
"""As the line is, and as it was when what is kept of Hopper's mutants was found."""
OF_LISTS = {
    "the other bound, expert.cuh: end_before = max(end_before, s.warp_ends[i]); }": NEVER_FALLS,
    "no barrier, expert.cuh: __syncthreads(); }": (
        "the scan of experts ends with one, too, and without experts nothing is launched"
    ),
}
OF_WGMMA = OF_LISTS | {
    "no wait at the cluster barrier, sm90_gemm.cuh: if (C::CLUSTER == 2 && warpgroup =="
    " C::WARPGROUPS * C::PARTS) barrier_cluster_wait(); /* as the others have */ }": (
        "the CTA stays until its other warps have waited"
    ),
    "no commit of products, sm90_gemm.cuh: wgmma_commit_group(); wgmma_wait_group<1>(sums);": APART,
    **{f"a group of products more under way, {line}": APART for line in AHEAD},
    **{f"no wait for products, {line}": APART for line in AHEAD},
    "no warp barrier, sm90_gemm.cuh: __syncwarp(); mbarrier_arrive_if(before, before);": (
        "of what is kept: that barrier was there, and lanes waited for products just before"
    ),
    "the cluster barrier releases nothing, sm90_gemm.cuh: if (C::CLUSTER == 2)"
    " barrier_cluster_arrive(); if (warpgroup == C::WARPGROUPS * C::PARTS) {": (
        "the peer needs a barrier's initialisation, which a fence of its own releases"
    ),
    "a comparison off by one, sm90_gemm_load.cuh: cp_async_ca_zfill<PIECE>(at, from[i] +"
    " (valid ? col + j : 0), valid); }": "where no byte is valid, none is read from anywhere",
    f"the other bound, {TOKENS} {FOUND}": NEVER_FALLS,
    f"a comparison off by one, {TOKENS} {FOUND}": "of two equal ends either is the larger",
    f"a comparison off by one, {TOKENS} if (t.rows.data && is_there) m = nk_token_of("
    f"t.rows.data[m], t.rows.per_token, t.rows.tokens); {THREAD}": (
        "0 / per_token is 0, as is what a negative row becomes"
    ),
    f"a constant more, {TOKENS} const uint32_t moved = codes[c] >> 4 * at.j, bits = (moved &"
    " 0x00080008) << 12 | (moved & 0x00070007) << 9; pairs[c] = multiply_pairs<false>(bits,"
    " cvt_f16x2_e4m3x2(factor[c] | factor[c] << 8));": (
        "a mask behind a shift to the left: its lowest bit meets a zero"
    ),
    f"a constant more, {TOKENS} const bool inside = first + c * 16 < valid; codes[c] = inside ?"
    " *(const uint32_t *)(row + c * 16) : 0;": "first is a multiple of 4, valid is one of 8",
    f"less for more, {TOKENS} {THREAD} }}": "what is added is 0 for numbers from 0 on",
    f"the other comparison, {TOKENS} const uint32_t row = blockIdx.x, l = p.l == 1 ? 0 : row /"
    " (uint32_t)p.m; const int id = (int)(blockIdx.y * blockDim.x + threadIdx.x);": (
        "experts have no batches, and a row of the only one divided by M is 0"
    ),
}
OF_HALVES = OF_LISTS | {
    "no warp barrier, sm90_halves.cu: __syncwarp();"
    " mbarrier_arrive_if(threadIdx.x % 32 == 0, shared_address(&s.empty[slot]));": (
        "all lanes wait for products just before, by one instruction"
    ),
}
OF_ROUTE = {
    "no wait for kernels before, sm90_route.cu: if (elect_sync()) load<C>(at, &w, &x, q.early);"
    " __syncwarp();": "kernels run one after the other here, and the thread waits again",
    "no warp barrier, sm90_route.cu: __syncwarp(); else": "a CTA of eight tokens has one turn",
    "the cluster barrier releases nothing, sm90_route.cu: if (C::SHARERS > 1)"
    " barrier_cluster_arrive_aligned(); __syncthreads();": (
        "it keeps memory there until others have arrived in it; nobody reads what is behind it"
    ),
    "a constant more, sm90_route.cu: keep_logits(p, scratch(t), n,"
    " sum_splits<C::PARTS_AT_ONCE>(parts, p.m * q.pitch, q.splits)); }": (
        "one part of sixteen is left out only where it is the last, and K has so many parts"
    ),
}
