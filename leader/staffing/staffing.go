// Package staffing says which load of machines is safe. It is the one source of that for all that
// plan a fleet: what rents machines, what places models on them, what moves lanes between models,
// and `muster plan place`. It is pure.
package staffing

import "math"

// Headroom is how many times the demand of late machines are planned for, where nothing else is
// stated: it covers what the load grows by until machines have started. Chosen.
const Headroom = 1.15

// Tolerance is the part of the headroom that a fleet may lack until another is rented, so that chance
// does not change it. So PlacingHeadroom, of what machines hold, is the rest: what is loaded within
// seconds needs less, and the machines that there are have room for it. With .1 a simulated day has
// 26 changes in place of 24 and costs .4 % more; 1 changes nothing there, since chance in the count of
// a minute is less.
const (
	Tolerance       = 0.5
	PlacingHeadroom = 1 + (1-Tolerance)*(Headroom-1)
)

// factor is that of square-root staffing (Halfin and Whitt, Operations Research 29, 1981): of n
// lanes, factor times the square root of n have to be free in the mean, so that few queries wait for
// long. Chosen so that in simulation 99 % are in time on one machine and on four that are unlike,
// where the policy horizon reaches .75 and .84 of the fluid limit (docs/internals/policies.md).
const factor = 0.3

// SafeShare returns the share of their time that so many lanes may run queries, which all of them
// can run: of few lanes more has to be free than of many. One lane is the least.
func SafeShare(lanes float64) float64 { return 1 - factor/math.Sqrt(max(1, lanes)) }

// Likely returns the least rate, in queries/s, of which chance explains that a rate was counted over
// so many seconds: two standard deviations less.
func Likely(rate, seconds float64) float64 { return max(0, rate-2*math.Sqrt(rate/seconds)) }
