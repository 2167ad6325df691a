// Command write writes the generated source files of ptx/isa and ptx. Run it with
// "go generate ./ptx/isa".
package main

import (
	"log"
	"os"
	"path/filepath"

	"sonicmoe/ptx/internal/gen"
)

func main() {
	files, err := gen.Files()
	if err != nil {
		log.Fatal(err)
	}
	for name, src := range files {
		// go generate runs in the folder of ptx/isa.
		if err := os.WriteFile(filepath.Join("..", name), src, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
