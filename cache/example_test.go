package cache_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sonicmoe/cache"
)

// This example stores a choice, which later processes find.
func Example() {
	dir, err := os.MkdirTemp("", "cache-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	c := cache.Open(cache.Options{Dir: dir})
	fmt.Println(c.PutChoice("up-projection d=4096 n=1024 E=64", []byte(`{"tile":[128,256]}`)))
	point, ok := c.GetChoice("up-projection d=4096 n=1024 E=64")
	fmt.Println(string(point), ok)

	infos, err := c.List(context.Background())
	fmt.Println(len(infos), infos[0].Kind, err)
	// Output:
	// <nil>
	// {"tile":[128,256]} true
	// 1 choice <nil>
}

// This example writes a filled cache to one file. Another machine uses the file as a read-only
// cache layer that is searched after the machine's own directory.
func ExampleCache_ExportFile() {
	dir, err := os.MkdirTemp("", "cache-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, bundle := context.Background(), filepath.Join(dir, "warm.tar")

	filled := cache.Open(cache.Options{Dir: filepath.Join(dir, "filled")})
	fmt.Println(filled.PutChoice("up-projection", []byte(`{"tile":[128,256]}`)))
	report, err := filled.ExportFile(ctx, bundle)
	fmt.Println(report.Choices, "choice", err)

	elsewhere := cache.Open(cache.Options{Dir: filepath.Join(dir, "own"), Layers: []string{bundle}})
	point, ok := elsewhere.GetChoice("up-projection")
	fmt.Println(string(point), ok)

	own := cache.Open(cache.Options{Dir: filepath.Join(dir, "own")})
	report, err = own.ImportFile(ctx, bundle, cache.BundleOptions{})
	fmt.Println(report.Stored, "stored", err)
	// Output:
	// <nil>
	// 1 choice <nil>
	// {"tile":[128,256]} true
	// 1 stored <nil>
}
