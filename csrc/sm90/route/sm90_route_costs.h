/* Costs of the sm90 router. All times are in microseconds (us); only ratios matter. */
#ifndef NK_SM90_ROUTE_COSTS_H
#define NK_SM90_ROUTE_COSTS_H

#define SM90_ROUTE_BEGIN_US 3.0              /* a CTA's beginning and end */
#define SM90_ROUTE_LOADED_PER_US 80e3        /* bytes into one SM while all are at work */
#define SM90_ROUTE_SHARED_BYTES_PER_US 200e3 /* written to shared memory, or read there by wgmma */
#define SM90_ROUTE_MULTICAST_US 1.6          /* a cluster, whose CTAs multicast w */
#define SM90_ROUTE_BARRIER_US 2.0            /* sums to memory, counters */
#define SM90_ROUTE_TRIP_US 0.5               /* loads of a turn's partial sums, as many as are in flight */
#define SM90_ROUTE_TURN_US 0.8               /* a token of each warp */

#endif
