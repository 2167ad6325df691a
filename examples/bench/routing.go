package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"sonicmoe/moe"
)

// routing is a distribution of rows over experts. A token draws K experts without replacement,
// by the experts' weights.
type routing struct {
	name   string
	weight func(expert int) float64
}

// routings lists the values of -routing.
var routings = []routing{
	// Every expert has the same weight.
	{"uniform", func(int) float64 { return 1 }},
	// Expert e has the weight 1/(e+1), which is Zipf's law with exponent 1.
	{"zipf", func(e int) float64 { return 1 / float64(e+1) }},
	// Every second expert has no rows.
	{"half", func(e int) float64 { return float64((e + 1) % 2) }},
	// Every token chooses expert 0. The other experts have the same weight.
	{"one", func(e int) float64 {
		if e == 0 {
			return math.Inf(1)
		}
		return 1
	}},
}

// parseRouting reads the value of -routing: "all", or names separated by commas. It puts
// uniform first, because the others are compared with it.
func parseRouting(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	var names []string
	for _, r := range routings {
		names = append(names, r.name)
	}
	if list == "all" {
		return names, nil
	}
	kinds := []string{"uniform"}
	for _, kind := range strings.Split(list, ",") {
		if !slices.Contains(names, kind) {
			return nil, fmt.Errorf("-routing %q, must be all or some of %s", kind, strings.Join(names, ","))
		}
		if kind != "uniform" {
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// route draws the K experts of every token, [T, K].
func route(kind string, c moe.Config, tokens int) ([]int32, error) {
	i := slices.IndexFunc(routings, func(r routing) bool { return r.name == kind })
	if i < 0 {
		return nil, fmt.Errorf("no routing is named %q", kind)
	}
	log := make([]float64, c.NumExperts)
	possible := 0
	for e := range log {
		w := routings[i].weight(e)
		log[e] = math.Log(w)
		if w > 0 {
			possible++
		}
	}
	if possible < c.TopK {
		return nil, fmt.Errorf("routing %s has %d experts with rows, a token needs %d", kind, possible, c.TopK)
	}
	// The K experts with the largest log(weight) plus Gumbel noise are K draws by weight
	// without replacement.
	random := rand.New(rand.NewPCG(1, uint64(i)))
	ids := make([]int32, 0, tokens*c.TopK)
	keys := make([]float64, c.NumExperts)
	order := make([]int32, c.NumExperts)
	for range tokens {
		for e := range keys {
			keys[e] = log[e] - math.Log(random.ExpFloat64())
			order[e] = int32(e)
		}
		slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(keys[b], keys[a]) })
		ids = append(ids, order[:c.TopK]...)
	}
	return ids, nil
}

// load returns the largest number of rows of an expert divided by the mean, and the number of
// experts without rows.
func load(ids []int32, experts int) (largest float64, empty int) {
	count := make([]int, experts)
	for _, e := range ids {
		count[e]++
	}
	for _, n := range count {
		if n == 0 {
			empty++
		}
	}
	return float64(slices.Max(count)) * float64(experts) / float64(len(ids)), empty
}
