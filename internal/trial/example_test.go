package trial_test

import (
	"context"
	"fmt"

	"sonicmoe/driver/emulated"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// This example runs a layer on random tensors and compares the results with float64.
func Example() {
	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	layer, err := moe.New(ctx, dev, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}, moe.WithoutCache(), moe.WithoutBackward())
	if err != nil {
		fmt.Println(err)
		return
	}
	const tokens, seed, boost = 16, 1, 4 // boost: narrow layers need larger weights
	t, err := trial.New(dev, layer, tokens, seed, boost)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	if err := t.Run(ctx, t.Args); err != nil {
		fmt.Println(err)
		return
	}
	results, err := t.Results(true)
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := t.Check(results, tokens)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Sampled, "tokens within the bounds:", report.Check() == nil)
	// Output: 16 tokens within the bounds: true
}
