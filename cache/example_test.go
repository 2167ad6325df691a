package cache_test

import (
	"context"
	"fmt"
	"os"

	"sonicmoe/cache"
)

// A module is compiled once; then it comes from the disk.
func Example() {
	dir, err := os.MkdirTemp("", "cache-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	c := cache.Open(cache.Options{Dir: dir})
	ptx := []byte(".version 8.0\n.target sm_90a\n.address_size 64\n")
	key := cache.NewKey(ptx, []byte("sm_90a"), []byte("-O3"))

	for range 2 {
		unlock := c.Lock(context.Background(), key)
		entry, outcome := c.Get(key)
		image, ok := entry.Image("ptxas 13.0.88")
		if !ok {
			image = cache.Image{Producer: "ptxas 13.0.88", Code: []byte("machine code")}
			c.Put(key, cache.Entry{Label: "up-projection", PTX: ptx, Images: []cache.Image{image}})
		}
		unlock()
		fmt.Printf("%s: %s\n", outcome, image.Code)
	}

	c.PutChoice("up-projection d=4096 n=1024 E=64", []byte(`{"tile":[128,256]}`))
	point, outcome := c.GetChoice("up-projection d=4096 n=1024 E=64")
	fmt.Printf("%s: %s\n", outcome, point)

	infos, err := c.List(context.Background())
	fmt.Println(len(infos), "files", err)
	// Output:
	// miss: machine code
	// hit: machine code
	// hit: {"tile":[128,256]}
	// 2 files <nil>
}
