package autotune_test

import (
	"fmt"

	"sonicmoe/autotune"
)

// This example stores a choice together with the digest of its kernels' PTX. When the generator
// writes other PTX later, the choice is stale and the cost model decides.
func ExamplePick() {
	type tile struct{ M, N int }
	key := autotune.Key{Subject: "product d=1536 n=256", GPU: "NVIDIA H200", SMs: 132, Bucket: autotune.BucketOf(1536)}
	choices := autotune.NewFile() // or a *cache.Cache
	value, _ := autotune.Encode(tile{128, 256}, "digest of its PTX")
	_ = choices.PutChoice(key.String(), value) // PutChoice of a File never fails

	for _, today := range []string{"digest of its PTX", "another digest"} {
		p, origin, err := autotune.Pick(choices, key, func(tile) (string, error) { return today, nil })
		fmt.Println(p, origin, err != nil)
	}
	// Output:
	// {128 256} tuned false
	// {0 0} cost model (stale choice) true
}
