package reference

import "slices"

// Zipf draws experts by Zipf's law: expert i has a probability in proportion to 1/(i+1). It
// holds the cumulative probabilities.
type Zipf []float64

// NewZipf returns Zipf's law for experts 0..experts-1. experts must be at least 1.
func NewZipf(experts int) Zipf {
	z, sum := make(Zipf, experts), 0.0
	for i := range z {
		sum += 1 / float64(i+1)
		z[i] = sum
	}
	for i := range z {
		z[i] /= sum
	}
	return z
}

// Draw returns the expert for a uniform number u in [0, 1).
func (z Zipf) Draw(u float64) int32 {
	i, met := slices.BinarySearch(z, u)
	if met {
		i++ // expert i has the numbers u below its cumulative probability z[i]
	}
	return int32(i)
}

// Distinct draws k different experts and returns them in the order of the draws. k must not
// exceed the number of experts. next returns uniform numbers in [0, 1).
func (z Zipf) Distinct(k int, next func() float64) []int32 {
	var list []int32
	for misses := 0; len(list) < k; misses++ {
		e := z.Draw(next())
		if misses == mostMisses {
			e = z.other(list, next())
		}
		if !slices.Contains(list, e) {
			list, misses = append(list, e), -1
		}
	}
	return list
}

// mostMisses limits how many draws may return experts that are already chosen. Without a limit,
// the loop could be very long if these experts have nearly all of the probability.
const mostMisses = 64

// other draws from the experts that are not in the list, by their relative probabilities.
func (z Zipf) other(list []int32, u float64) (e int32) {
	shares, rest, before := make([]float64, len(z)), 0.0, 0.0
	for i, sum := range z {
		if !slices.Contains(list, int32(i)) {
			shares[i] = sum - before
			rest += shares[i]
		}
		before = sum
	}
	u *= rest
	for i, share := range shares {
		if slices.Contains(list, int32(i)) || share == 0 && rest > 0 {
			continue
		}
		e = int32(i)
		if u -= share; u < 0 {
			break
		}
	}
	return e
}
