/* What the sm80 router's work takes. All times are in microseconds (us). Ratios choose; the whole also says how long
 * CTAs wait for each other (TIMEOUT).
 *
 * From an H200, 2026-11. */
#ifndef NK_SM80_ROUTE_COSTS_H
#define NK_SM80_ROUTE_COSTS_H

#define SM80_ROUTE_BYTES_PER_US 30e3     /* into one SM while all are at work */
#define SM80_ROUTE_FLOP_PER_US 2.1e6     /* of an SM */
#define SM80_ROUTE_CROWDED 1.05          /* two CTAs of an SM get into each other's way */
#define SM80_ROUTE_STEP_US 0.3           /* a barrier and what it waits for */
#define SM80_ROUTE_SUM_BYTES_PER_US 60e3 /* sums to memory and back */
#define SM80_ROUTE_BARRIER_US 2.5        /* sums to memory, a counter, sums back */
#define SM80_ROUTE_TURN_US 2.0           /* up to eight tokens */

#endif
