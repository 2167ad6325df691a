package cache_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

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

// A filled cache goes to other machines as one file, which serves there as it
// is, behind a directory of one's own.
func ExampleCache_ExportFile() {
	dir, err := os.MkdirTemp("", "cache-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, bundle := context.Background(), filepath.Join(dir, "warm.tar")

	filled := cache.Open(cache.Options{Dir: filepath.Join(dir, "filled")})
	key := cache.NewKey([]byte("PTX"), []byte("sm_90a"))
	filled.Put(key, cache.Entry{PTX: []byte("PTX"), Images: []cache.Image{{Producer: "ptxas 13.0.88", Code: []byte("machine code")}}})
	report, err := filled.ExportFile(ctx, bundle)
	fmt.Println(report.Modules, "module", err)

	elsewhere := cache.Open(cache.Options{Dir: filepath.Join(dir, "own"), Layers: []string{bundle}})
	entry, outcome := elsewhere.Get(key)
	fmt.Printf("%s: %s\n", outcome, entry.Images[0].Code)

	own := cache.Open(cache.Options{Dir: filepath.Join(dir, "own")})
	report, err = own.ImportFile(ctx, bundle)
	fmt.Println(report.Stored, "stored", err)
	// Output:
	// 1 module <nil>
	// hit: machine code
	// 1 stored <nil>
}
