package reference_test

import (
	"fmt"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
)

// This example compares some tokens of a result with the reference.
func Example() {
	const tokens = 512
	c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 16, TopK: 2}
	s := c.Shapes(tokens)
	weights := reference.NewNormal(1, reference.ScaleWeight)
	x := reference.NewNormal(2, reference.ScaleX).Values(s.X.Elements())
	layer, err := reference.NewLayer(c, weights.Values(s.Router.Elements()),
		weights.Values(s.W1.Elements()), weights.Values(s.W2.Elements()))
	if err != nil {
		fmt.Println(err)
		return
	}
	// routing and full stand for the results of a kernel. One row of O is made wrong below.
	routing, full, err := layer.Forward(x, reference.Rounded)
	if err != nil {
		fmt.Println(err)
		return
	}
	o := make([]uint16, len(full.O))
	for i, v := range full.O {
		o[i] = num.Float64ToBF16(v)
	}
	copy(o[511*c.Hidden:], make([]uint16, c.Hidden))

	sample := reference.SampleTokens(routing.ExpertIDs, tokens, c.TopK, c.NumExperts, 32)
	want, err := layer.Experts(x, routing.Scores, routing.ExpertIDs, sample, reference.Unrounded)
	if err != nil {
		fmt.Println(err)
		return
	}
	report := reference.Compare(reference.Gather(o, sample, c.Hidden), want.O, len(sample), c.Hidden)
	fmt.Println("accepted:", report.Check(reference.VsUnrounded) == nil)
	fmt.Printf("worst is token %d, off by %.0f %%\n", sample[report.WorstRow], 100*report.RowError)
	// Output:
	// accepted: false
	// worst is token 511, off by 100 %
}
