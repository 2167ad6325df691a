package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"sonicmoe/moe"
)

// copyRate is the measured rate of copies between two H200 of one host, in bytes per second.
// hidden is the number of chunks into which a rank's experts are split. The results of a chunk
// are sent while the next chunk is computed, so that only the transfer of one chunk takes
// additional time.
const (
	copyRate  = 393e9
	hidden    = 4
	entrySize = 12 // bytes for each (token, expert) pair in the list that is sent with the tokens
)

// spread holds the figures of one rank, for a layer whose experts are spread over ranks.
type spread struct {
	experts int
	// These are bytes: weights of the rank's experts, window of the memory for tokens that
	// arrive if all tokens come to this rank, and saved of H and window in that case.
	weights, window, saved int64
	// out and back are bytes that a rank sends in a forward pass. out counts tokens and the
	// list of each token's experts. back counts rows of Y.
	out, back float64
	// exchange is the time to send both. left is the part of this time that products do not
	// hide.
	exchange, left time.Duration
}

// over returns the figures of the plan's layer over a number of ranks, with a number of tokens
// on each.
func (p plan) over(ranks, tokens int) spread {
	c := p.Config
	s := spread{experts: (c.NumExperts + ranks - 1) / ranks}
	shapes, rowBytes := c.Shapes(0), c.Shapes(1).X.Bytes()
	for _, of := range []moe.Shape{shapes.W1, shapes.W3, shapes.W2} {
		s.weights += of.Bytes() / int64(c.NumExperts) * int64(s.experts)
	}
	all, each := int64(ranks*tokens), int64(min(c.TopK, s.experts))
	s.window = all * (rowBytes + each*entrySize)
	s.saved = s.window + c.Shapes(1).H.Bytes()/int64(c.TopK)*each*all
	// A token is not sent to a rank if all of its experts belong to other ranks.
	misses := 1.0
	for i := range c.TopK {
		misses *= max(0, float64(c.NumExperts-s.experts-i)) / float64(c.NumExperts-i)
	}
	others := float64(ranks - 1)
	pairs := float64(tokens*c.TopK) * others / float64(ranks)
	s.out = float64(tokens)*others*(1-misses)*float64(rowBytes) + pairs*entrySize
	s.back = pairs * float64(rowBytes)
	took := func(bytes float64) time.Duration { return time.Duration(bytes / copyRate * 1e9) }
	chunk := took(s.back) / hidden
	s.exchange = took(s.out) + took(s.back)
	s.left = took(s.out) + max(chunk, took(s.back)-p.Forward*(hidden-1)/hidden)
	return s
}

// writeRanks prints the figures of a rank for each plan.
func writeRanks(out io.Writer, plans []plan, ranks, tokens int) error {
	fmt.Fprintf(out, "One layer over %d ranks of a host, %d tokens a rank, any expert as likely as any other. A prediction: copies at %.0f GB/s,\n"+
		"as measured between two H200, products at the roofline, rows of Y in %d chunks of which all but one can be hidden. Window and saved\n"+
		"have room for all tokens of all ranks.\n\n", ranks, tokens, copyRate/1e9, hidden)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "model\texperts\tweights\twindow\tsaved\tsent\texchange\tnot hidden\tforward\tof one GPU\t")
	fmt.Fprintln(w, "\ta rank\tMiB\tMiB\tMiB\tMB\tms\tms\tms\t\t")
	for _, p := range plans {
		if ranks > p.Config.NumExperts {
			fmt.Fprintf(w, "%s\tfewer experts than ranks\t\t\t\t\t\t\t\t\t\n", p.Name)
			continue
		}
		s := p.over(ranks, tokens)
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%.0f\t%s\t%s\t%s\t%.2f\t\n", p.Name, s.experts, s.weights>>20, s.window>>20, s.saved>>20,
			(s.out+s.back)/1e6, ms(s.exchange), ms(s.left), ms(p.Forward), (p.Forward+s.left).Seconds()/p.Forward.Seconds())
	}
	return w.Flush()
}
