package kernel

import (
	"context"
	"os"
	"testing"

	"sonicmoe/ptx/ptxas"
)

func TestUpAssembles(t *testing.T) {
	for _, b := range []interface{ Build() (Kernel, error) }{
		Up{Hidden: 1536, Intermediate: 256, SaveH: true, Point: Point{TileN: 256, Stages: 4, Panel: 16}},
		Down{Hidden: 1536, Intermediate: 256, Point: Point{TileN: 256, Stages: 4, Panel: 16}},
		Router{Hidden: 1536, Experts: 128, TopK: 8},
		Router{Hidden: 1536, Experts: 512, TopK: 10},
		Count{Experts: 128, TopK: 8},
		Plan{Experts: 128, TopK: 8},
		Aggregate{Hidden: 1536, TopK: 8},
	} {
		k, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		txt := k.Module.Print()
		os.WriteFile("/tmp/"+k.Name+".ptx", txt.PTX, 0o644)
		_, report, err := ptxas.Assemble(context.Background(), txt.PTX)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(k.SharedBytes, report)
		if c := ptxas.Complaint(report); c != "" {
			t.Error(c)
		}
	}
}
