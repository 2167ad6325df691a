package tune_test

import (
	"context"
	"fmt"
	"time"

	"sonicmoe/autotune"
	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
	"sonicmoe/moe/tune"
)

// ExampleLayer tunes one product of a small layer. It tries two tilings in a separate process.
// (Times of the emulated device mean nothing. On a GPU leave Most, Rounds and Warm 0.) A program
// that tunes calls WorkerMain first. plan.Save stores the choices for moe.New.
func ExampleLayer() {
	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	config := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 32}
	plan, err := tune.Layer(ctx, dev, config, tune.Options{
		ForwardOnly: true, Products: []string{"down"},
		Most: 2, Rounds: 1, Warm: time.Nanosecond,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range plan.Candidates() {
		if c.Status == "measured" {
			fmt.Println(c.Product, c.Tiling)
		}
	}
	// Unordered output:
	// down 128x128 s6 p8 c1
	// down 128x128 s6 p4 c1
}

// ExamplePlan_Put stores the result of tuning in a file. One process tunes, and all others read the
// file: with moe.WithTunedFrom every rank of a job has the same tilings.
func ExamplePlan_Put() {
	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	config := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 32}
	plan, err := tune.Layer(ctx, dev, config, tune.Options{
		ForwardOnly: true, Products: []string{"down"},
		Most: 2, Rounds: 1, Warm: time.Nanosecond,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	tuned := autotune.NewFile() // WriteFile and ReadFile store the file as JSON
	if err := plan.Put(tuned); err != nil {
		fmt.Println(err)
		return
	}
	layer, err := moe.New(ctx, dev, config, moe.WithoutCache(), moe.WithTunedFrom(tuned), moe.WithoutBackward())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("down:", layer.ChosenBy()["down"])
	fmt.Println("up:", layer.ChosenBy()["up"])
	// Output:
	// down: tuned
	// up: cost model
}
