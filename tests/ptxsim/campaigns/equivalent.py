"""Why a mutant that nothing notices is no error, or none that the simulated GPU can see.

By target, then by the mutation and the place in the sources that it is of (anchors.py).
"""

TOGETHER = "lanes rejoin behind a branch here, which ptxas does not promise"
REMOTE = "arrivals at another CTA's mbarrier are there at once, which hardware does not promise"
READ = "only what ordinary stores wrote must be fenced here, not what loads have read"
LAST = "of those who read a response the last is remembered, and it may not be this one"
NEAR = "its own CTA, copies and commits alone are waited for there, which want no wider acquire"
OVER = "it tells that reads are over, which a release of any scope does"
COPIED = "any arrival tells what copies have brought, and tcgen05 fences order tensor memory"
APART = "in PTX registers of a step are its own: nothing changes them before a later wait"
SCANNED = "the scan of experts ends with one, too, and without experts nothing is launched"
NEVER_FALLS = "offsets never fall, so the last end is the largest; only others make a difference"
OF_NOBODY = "rows of no expert are prepared, too, which nothing reads"
SHIFTED = "a mask behind a shift to the left: its lowest bit meets a zero"
ALIGNED = "bits of an address that a descriptor shifts out, or that are 0 where stages begin"
POWER_OF_TWO = "of a division by a power of two: what is added is 0 for numbers from 0 on"

OF_TCGEN05 = {
    "no warp barrier, load_accumulator: __syncwarp": TOGETHER,
    "no warp barrier, meet_cluster: __syncwarp": TOGETHER,
    "no warp barrier, alloc_tmem: __syncwarp": TOGETHER,
    "no warp barrier, run_epilogue: __syncwarp": (
        "the wait for loads before it is one instruction of the whole warp"
    ),
    "no fence after, wait_tmem: tcgen05_fence_after_thread_sync": (
        "if the MMA warp waits for its own MMAs, their commit is enough for the simulator"
    ),
    "no wait at the mbarrier, drain_pipeline: mbarrier_wait_cluster_relaxed": REMOTE,
    "no wait at the mbarrier, wait_tmem: mbarrier_wait_cluster_relaxed": (
        "one thread's copies of scale factors follow its MMAs here, which hardware may not promise"
    ),
    "a comparison off by one, run_epilogue: statement (25 of 32)": (
        "behind the last column as many as none are stored"
    ),
    "waits for the next barrier, wait_tmem: mbarrier_wait_cluster_relaxed": (
        "the first of two accumulators waits until the second is empty: later, and for both"
    ),
    "the other comparison, run_mxf4nvf4: statement (15 of 19)": "warps 8 and 9 change places",
    "a constant more, produce_stages: shared_address (1 of 2)": (
        "whether batches share one operand N: no draw's tokens do, those of test_tiles.py do"
    ),
    "a constant more, arrange_sf: statement (2 of 25)": POWER_OF_TWO,
    "a comparison off by one, store_lane: statement (8 of 12)": (
        "where three columns are left; of these few draws none ends so, test_tiles.py does"
    ),
    "a comparison off by one, apply: statement (3 of 7)": (
        "the alpha behind the last, of an element that nobody stores; draws have memory there"
    ),
    "no proxy fence, next_dynamic_tile: fence_proxy_async": READ,
    "arrives without releasing, next_dynamic_tile: mbarrier_arrive_remote": LAST,
    "waits for its CTA alone, query_launch_control: mbarrier_wait_cluster": OVER,
    "waits for its CTA alone, next_dynamic_tile: mbarrier_wait_cluster": NEAR,
    "waits for its CTA alone, wait_cta_group: mbarrier_wait_cluster": NEAR,
    "waits for its CTA alone, send_sums_to_peers: mbarrier_wait_cluster": OVER,
    "the other choice, advance: statement (3 of 4)": (
        "scale factors stay in the first columns of tensor memory: copies wait for MMAs before them"
    ),
    "a constant more, sf_atom_descriptor: tcgen05_descriptor": ALIGNED,
    "a constant more, codes_descriptor: tcgen05_descriptor": ALIGNED,
    "a constant more, mma_stage: tcgen05_descriptor_behind": ALIGNED,
    "a constant more, mma_stage: statement (6 of 9)": ALIGNED,
    "less for more, mma_stage: tcgen05_mma_mxf4nvf4": (
        "to the descriptor of the first matrix 0 is added"
    ),
    "a comparison off by one, mma_stage: statement (6 of 9)": (
        "a last stage has scale factors of one K block more, which no MMA reads"
    ),
    "a comparison off by one, issue_mmas: statement (18 of 23)": (
        "a full stage takes the loops of a last one: more instructions, the same MMAs"
    ),
    "a constant more, issue_mmas: statement (12 of 23)": (
        "a column more between stages of scale factors, for which there is room"
    ),
    "less for more, issue_mmas: statement (7 of 23)": (
        "all of tensor memory is allocated, and begins at 0"
    ),
}

OF_SM100_KIND_F16 = OF_TCGEN05 | {
    "arrives without releasing, arrive_at_leader: mbarrier_arrive_remote": COPIED,
    "no warp barrier, decode_weights_to_tmem: __syncwarp (1 of 2)": TOGETHER,
    "no warp barrier, decode_weights_to_tmem: __syncwarp (2 of 2)": (
        "the wait for stores before it is one instruction of the whole warp"
    ),
}

OF_SM100_EXPERTS = OF_SM100_KIND_F16 | {
    "arrives without releasing, arrive_at_leader: mbarrier_arrive": COPIED,
    "no barrier, make_scheduler: __syncthreads": SCANNED,
    "the other choice, scan_experts: statement (25 of 32)": (
        "of atoms: tokens of 16 bits have no scale factors"
    ),
    "less for more, expert_of_tile: statement (4 of 8)": (
        "what is added for the division is 0 for numbers from 0 on"
    ),
    "a constant more, e4m3_to_float: statement (2 of 2)": (
        "whether a scale factor is NaN: no draw's are, those of test_tiles.py are"
    ),
}

OF_SM100_ROUTE = {
    "no warp barrier, load_16_sums: __syncwarp": TOGETHER,
    "a comparison off by one, select_expert: statement (2 of 8)": (
        "which of two ways selects, where both are right: all groups kept, 32 groups, 128 experts"
    ),
    "no wait for kernels before, sm100_route: elect_sync (2 of 3)": (
        "kernels run one after the other here, and the thread waits again"
    ),
    "waits without acquiring, tcgen05_route_epilogue: mbarrier_wait": (
        "it tells of sums in tensor memory alone, and the fence behind it is enough for these"
    ),
}

OF_GEMV = {
    "no warp barrier, announce_inbox: __syncwarp": TOGETHER,
}

BY_BYTES = "what is aligned is read byte by byte: to the same bits"
COUNTED = "of the scan that counts tiles: it finds none, and a tile more has no expert"
OF_SM120 = {
    "the other comparison, before: statement (3 of 3)": (
        "whether a division takes 32 bits: one of 64 gives the same, and no draw needs them"
    ),
    "less for more, point: statement (8 of 12)": (
        "the address by which rows are read that are not aligned: these draws have none, "
        "test_tiles.py does"
    ),
    "the other bound, clamped_offset: statement (2 of 3)": (
        "offsets behind the last row are cut: draws have none, test_grouped_experts.py does"
    ),
    "no barrier, find_expert: __syncthreads": "a CTA has one tile, and looks for no other",
    "a constant more, stream_k_for_each_tile: statement (4 of 8)": (
        "a CTA multiplies the next one's tile, too, to the same bits"
    ),
    "operands swapped, stream_k_for_each_tile: statement (6 of 8)": (
        "a tile has one iteration, and so has the CTA: either bound is enough"
    ),
    "a constant more, scan_experts: statement (16 of 32)": COUNTED,
    "operands swapped, scan_experts: statement (22 of 32)": COUNTED,
    "the other bound, scan_experts: statement (28 of 32)": NEVER_FALLS,
    "operands swapped, find_sf_row: statement (5 of 6)": (
        "whether memory has an expert's blocked factors: draws do, bad offsets of "
        "test_grouped_experts.py have fewer"
    ),
    "a comparison off by one, fetch_bytes: statement (5 of 7)": (
        "a byte of codes behind K, whose products have scale factors of zero"
    ),
    "a comparison off by one, sm120_multiply_tile: statement (14 of 19)": (
        "the factor of a token behind the last, whose sums nobody stores; draws have memory there"
    ),
    "the other bound, fetch_by: statement (4 of 17)": (
        "codes behind K, whose products have scale factors of zero; draws have memory there"
    ),
    "the other comparison, is_aligned: statement (1 of 2)": BY_BYTES,
    "the other comparison, point: statement (10 of 13)": BY_BYTES,
}

OF_EXPERTS_GEMV = {
    "the other bound, run_16bit_gemv: statement (4 of 58)": "a CTA of experts has all of K",
    "operands swapped, run_16bit_gemv: statement (4 of 58)": (
        "the rows of drawn weights begin in one atom"
    ),
    "the other comparison, run_16bit_gemv: statement (34 of 58)": (
        "experts have no clusters, and what prepares for them does no harm"
    ),
    "waits without acquiring, run_16bit_gemv: statement (41 of 58)": (
        "fp16_conversion_of_token() has waited for the same token"
    ),
    "no wait at the mbarrier, run_16bit_gemv: statement (41 of 58)": (
        "fp16_conversion_of_token() has waited for the same token"
    ),
    "waits without acquiring, run_16bit_gemv: statement (40 of 58)": (
        "what a copy wrote is there once its bytes are counted"
    ),
    "the other comparison, run_16bit_gemv: statement (40 of 58)": (
        "all lanes have what one of them adds"
    ),
    "a comparison off by one, run_16bit_gemv: statement (41 of 58)": (
        "no drawn token is so long and ends in such a step"
    ),
    "less for more, run_16bit_gemv: statement (9 of 58)": (
        "lanes take experts in another order, and what lies around offsets ends none"
    ),
    "a comparison off by one, run_16bit_gemv: statement (18 of 58)": (
        "what lies behind offsets ends no expert"
    ),
}

ONE_TILE = "no warp of a drawn call has steps of two tiles, as those of test_dual_few_tokens.py do"
OF_DUAL_GEMV = {
    "no warp barrier, run_16bit_gemv: statement (15 of 58)": (
        "a lane makes the mbarrier that it uses; on hardware one lane makes them for all"
    ),
    "waits without acquiring, run_16bit_gemv: statement (38 of 58)": (
        "a copy is there for all once it is counted, which hardware does not promise"
    ),
    "the other comparison, run_16bit_gemv: statement (20 of 58)": "of what is prefetched to L2",
    "a comparison off by one, run_16bit_gemv: statement (27 of 58)": (
        "rows are fetched by eight or not at all, and codes beyond K count for nothing"
    ),
    "operands swapped, run_16bit_gemv: statement (49 of 58)": "either loop fetches what it must",
    "a comparison off by one, run_16bit_gemv: statement (49 of 58)": ONE_TILE,
    "less for more, run_16bit_gemv: statement (4 of 58)": ONE_TILE,
    "a comparison off by one, run_16bit_gemv: statement (57 of 58)": "sums beyond the last are 0",
} | {key: why for key, why in OF_EXPERTS_GEMV.items() if "mbarrier" in key or "acquiring" in key}

OF_LIST_GEMV = {
    "operands swapped, run_16bit_gemv: statement (49 of 58)": "either loop fetches what it must",
    "a comparison off by one, run_16bit_gemv: statement (49 of 58)": ONE_TILE,
    "a constant more, run_16bit_gemv: statement (49 of 58)": SHIFTED,
    "waits without acquiring, run_16bit_gemv: statement (38 of 58)": (
        "a copy is there for all once it is counted, which hardware does not promise"
    ),
}

OF_LISTS = {
    "the other bound, scan_experts: statement (28 of 32)": NEVER_FALLS,
    "no barrier, list_experts: __syncthreads": SCANNED,
}

OF_WGMMA = OF_LISTS | {
    "no wait at the cluster barrier, run_gemm: barrier_cluster_wait": (
        "the CTA stays until its other warps have waited"
    ),
    "no commit of products, multiply_word: wgmma_commit_group": APART,
    "a group of products more under way, multiply_word: wgmma_wait_group": APART,
    "no wait for products, multiply_word: wgmma_wait_group": APART,
    "a constant more, for_each_tile: statement (10 of 11)": POWER_OF_TWO,
    "an arrival more expected, init_gemm_barriers: mbarrier_init (3 of 4)": (
        "drawn calls of few steps fill the last of eight stages once; longer ones would hang"
    ),
    "a comparison off by one, copy_pieces: cp_async_ca_zfill": (
        "where no byte is valid, none is read from anywhere"
    ),
    "a comparison off by one, copy: cp_async_ca_zfill (1 of 2)": (
        "factors of the last atom again, of codes beyond K, which are zeros"
    ),
    "operands swapped, copy: statement (2 of 13)": "the same bytes in smaller pieces",
    "less for more, scan_sum: statement (4 of 5)": (
        "of atoms: tokens of 16 bits have no scale factors"
    ),
    "no wait for kernels before, load_tile: griddepcontrol_wait": (
        "kernels run one after the other here"
    ),
    "a comparison off by one, for_each_window: statement (4 of 7)": (
        "a window more, of tokens that nobody stores"
    ),
    "no proxy fence, rearrange_codes: fence_proxy_async": (
        "a bulk copy writes over ordinary stores; the simulator wants a fence where one reads them"
    ),
    "the other bound, find_sf_row: statement (4 of 7)": NEVER_FALLS,
    "a comparison off by one, find_sf_row: statement (4 of 7)": (
        "of two equal ends either is the larger"
    ),
    "a constant more, load_eight: statement (6 of 10)": SHIFTED,
    "a constant more, load_eight: statement (10 of 10)": SHIFTED,
    "a constant more, row_of_operand: statement (2 of 3)": POWER_OF_TWO,
    "less for more, row_of_operand: statement (2 of 3)": POWER_OF_TWO,
    "the other bound, find_row: statement (5 of 12)": OF_NOBODY,
    "operands swapped, find_row: statement (5 of 12)": OF_NOBODY,
    "the other bound, find_row: statement (6 of 12)": OF_NOBODY,
    "the other comparison, find_row: statement (6 of 12)": OF_NOBODY,
    "a comparison off by one, find_row: statement (7 of 12)": OF_NOBODY,
    "a comparison off by one, find_row: statement (8 of 12)": "rows of experts are the operand's",
    "no barrier, find_sf_row: statement (4 of 7)": "the kernel for one row scans once",
    "a constant more, find_sf_row: statement (6 of 7)": POWER_OF_TWO,
    "less for more, find_sf_row: statement (6 of 7)": POWER_OF_TWO,
    "the other comparison, find_sf_row: statement (6 of 7)": (
        "a nearer end refuses fewer rows, and none of a buffer that has all scale factors"
    ),
}

OF_HALVES = OF_LISTS | {
    "no warp barrier, release_stage: __syncwarp": (
        "all lanes wait for products just before, by one instruction"
    ),
    "no barrier, run_kind_f16: statement (7 of 21)": SCANNED,  # that of list_experts
}

OF_ROUTE = {
    "no wait for kernels before, multiply_and_route: elect_sync (1 of 2)": (
        "kernels run one after the other here, and the thread waits again"
    ),
    "no warp barrier, route_turns: __syncwarp (2 of 2)": "a CTA of eight tokens has one turn",
    "a comparison off by one, route_turns: statement (27 of 28)": (
        "which of two ways selects from 32 expert groups, where both are right"
    ),
    "a constant more, route_turns: statement (25 of 28)": (
        "one part of sixteen is left out only where it is the last, and K has so many parts"
    ),
}

EQUIVALENT = {
    "sm100_kind_f16": OF_SM100_KIND_F16,
    **dict.fromkeys(("sm100_kind_f16_rows", "sm100_kind_f16_gated"), OF_SM100_EXPERTS),
    **dict.fromkeys(("sm90_experts", "sm90_experts_gated"), OF_EXPERTS_GEMV),
    **dict.fromkeys(("sm90_dual", "sm90_dual_few"), OF_DUAL_GEMV),
    **dict.fromkeys(("sm90_list", "sm90_list_blocked"), OF_LIST_GEMV),
    "sm100_few": OF_GEMV,
    "sm100_gemv": OF_GEMV,
    "sm120_few": OF_GEMV,
    "sm120_gemv": OF_GEMV,
    "gemv": {
        "no barrier, gemv_of_quads: __syncthreads (1 of 2)": (
            "the vector is staged once, and nobody has read before"
        ),
    },
    "route_sigmoid": {
        "no wait, route_mainloop: cp_async_wait_group (2 of 2)": (
            "behind the last step only empty groups are left"
        ),
        "a group more under way, route_mainloop: cp_async_wait_group (2 of 2)": (
            "behind the last step only empty groups are left"
        ),
        "no barrier, store_partials: __syncthreads (2 of 2)": (
            "K is split: the sums go to global memory"
        ),
        "no barrier, sort_rows: __syncthreads (1 of 2)": (
            "orders global memory only, where the simulator looks for no races"
        ),
        "no warp barrier, place_entries: __syncwarp (2 of 2)": (
            "behind a warp's last 32 entries nothing follows"
        ),
    },
    "sm90_gemv": {
        "no warp barrier, run_codes_gemv: statement (27 of 31)": TOGETHER,
    },
    "sm90_tiles": {
        "no warp barrier, run_map_gemv: __syncwarp (1 of 3)": TOGETHER,
        "no warp barrier, run_map_gemv: __syncwarp (2 of 3)": TOGETHER,
        "no warp barrier, run_map_gemv: __syncwarp (3 of 3)": TOGETHER,
        "no warp barrier, run_map_gemv: statement (15 of 47)": TOGETHER,
    },
    "sm90_few": {
        "no warp barrier, run_16bit_gemv: statement (34 of 58)": TOGETHER,
        "no warp barrier, run_16bit_gemv: statement (15 of 58)": (
            "a lane makes the mbarrier that it uses; on hardware one lane makes them for all"
        ),
        "waits without acquiring, run_16bit_gemv: statement (38 of 58)": (
            "a copy is there for all once it is counted, which hardware does not promise"
        ),
    },
}
