package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"sonicmoe/examples/internal/modelcard"
)

// write prints the table, followed by the remarks on single models.
func write(out io.Writer, plans []plan, tokens int) error {
	fmt.Fprintf(out, "One layer, %d tokens a call, any expert as likely as any other; times are an H200's rooflines.\n"+
		"The weights of a model are its expert layers' alone: attention, its KV cache and dense layers need more.\n\n", tokens)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "model\td\tn\tE\tK\tshared\tweights\tlayers\tmodel\tGPUs\tsaved\tworkspace\tpadding 64/128/256\tforward\tbackward\tdecode\t")
	fmt.Fprintln(w, "\t\t\t\t\t\tMiB\t\tGiB\tof 141 GB\tB/token\tMiB\t%\tms\tms\tµs\t")
	for _, p := range plans {
		workspace := "-"
		if p.beyond == nil {
			workspace = fmt.Sprint(p.BackwardWorkspace >> 20)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.0f\t%d\t%d\t%s\t%s\t%s\t%s\t%.1f\t\n",
			p.Name, p.Config.Hidden, p.Config.Intermediate, p.Config.NumExperts, p.Config.TopK, p.Config.SharedExperts,
			p.Weights>>20, len(p.MoE), float64(p.ofModel())/(1<<30), p.gpus(), p.savedPerToken(), workspace, p.waste(), ms(p.Forward), ms(p.Backward), p.Decode.Seconds()*1e6)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, p := range plans {
		for _, text := range p.remarks() {
			fmt.Fprintf(out, "%s: %s\n", p.Name, text)
		}
	}
	return nil
}

// ofModel returns the bytes of the weights of all expert layers of the model.
func (p plan) ofModel() int64 { return p.Weights * int64(len(p.MoE)) }

// gpus returns the least number of H200s whose memory can hold the weights of all expert
// layers.
func (p plan) gpus() int64 {
	const memory = 141_000_000_000
	return (p.ofModel() + memory - 1) / memory
}

// savedPerToken returns the bytes that are kept for each token from forward to backward.
func (p plan) savedPerToken() int64 {
	s := p.Config.Shapes(1)
	return s.X.Bytes() + s.H.Bytes() + s.SharedH.Bytes()
}

func (p plan) waste() string {
	return fmt.Sprintf("%.0f/%.0f/%.0f", 100*p.Padding[64], 100*p.Padding[128], 100*p.Padding[256])
}

func ms(t time.Duration) string { return fmt.Sprintf("%.2f", t.Seconds()*1e3) }

// remarks returns remarks on the plan's model and the limits of its figures.
func (p plan) remarks() []string {
	list := modelcard.Remarks(p.Model)
	if p.Units > 0 {
		list = append(list, fmt.Sprintf("packed weights arranged for small batches are a second copy: %d bytes a layer, %.0f GiB in all", p.Units, float64(p.Units*int64(len(p.MoE)))/(1<<30)))
	}
	if p.beyond != nil {
		list = append(list, "no kernel computes it yet: "+p.beyond.Error())
	}
	return list
}
