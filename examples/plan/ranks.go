package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sonicmoe/examples/internal/command"
	"sonicmoe/moe"
	"sonicmoe/moe/parallel"
)

// The model of the network. ranks.md explains it.
//
// hostRanks is the number of GPUs of a host. copyRate is the measured rate of copies between two
// H200 of one host, in bytes per second, and startTime the measured time of a small exchange.
// netRate is assumed, not measured: the rate between hosts for each GPU, nine tenths of a line of
// 400 Gbit/s. The rows of Y of a chunk of experts are sent while the next chunk is computed. Half of
// the products of a rank's own tokens come before all chunks, while tokens arrive, and half come
// after all chunks.
const (
	hostRanks = 8
	copyRate  = 393e9
	netRate   = 45e9
	startTime = 23 * time.Microsecond
	entrySize = 12 // bytes for each (token, expert) pair in the list that is sent with the tokens
	slotSize  = 4  // bytes for each such pair that partial sums add to the list
	lossSize  = 8  // bytes for each token's balance loss and z-loss
)

// sent counts bytes that a rank sends: to ranks of its own host, and to other hosts.
type sent struct{ inside, outside float64 }

func (s sent) total() float64 { return s.inside + s.outside }

func (s sent) plus(t sent) sent { return sent{s.inside + t.inside, s.outside + t.outside} }

// took returns the time of an exchange. Both networks work at the same time.
func (s sent) took() time.Duration {
	if s.total() == 0 {
		return 0
	}
	return startTime + time.Duration(max(s.inside/copyRate, s.outside/netRate)*1e9)
}

// spread has the figures of one rank, for a layer whose experts are spread over ranks.
type spread struct {
	ranks, experts int
	// These are bytes: weights of the rank's experts, window of the memory for tokens that
	// arrive if all tokens come to this rank, and saved of H and window in that case.
	weights, window, saved int64
	// out has tokens and the list of each token's experts, and back has rows of Y. grads has what
	// a backward pass sends: rows of dO and dX, gradients of scores and logits, losses, the partial sums of
	// the router and of the shared experts, and the shared experts' gradients.
	out, back, grads sent
	// left is the time of exchanges that products do not hide, of both passes.
	left, gradsLeft time.Duration
}

// toEach returns the bytes that a rank sends if it sends this many to each other rank.
func toEach(ranks int, bytes float64) sent {
	inside := min(hostRanks, ranks) - 1
	return sent{float64(inside) * bytes, float64(ranks-1-inside) * bytes}
}

// over returns the figures of the plan's layer over a number of ranks, with a number of tokens
// on each. sums reports whether a rank sends a sum for each token, and not a row for each pair.
func (p plan) over(ranks, tokens int, sums bool) spread {
	c, entry := p.Config, entrySize
	if sums = sums && ranks > 1; sums {
		entry += slotSize
	}
	s := spread{ranks: ranks, experts: (c.NumExperts + ranks - 1) / ranks}
	shapes, rowBytes := c.Shapes(0), float64(c.Shapes(1).X.Bytes())
	for _, of := range []moe.Shape{shapes.W1, shapes.W3, shapes.W2} {
		s.weights += of.Bytes() / int64(c.NumExperts) * int64(s.experts)
	}
	all, each := int64(ranks*tokens), int64(min(c.TopK, s.experts))
	s.window = all * (int64(rowBytes) + each*int64(entry))
	s.saved = s.window + c.Shapes(1).H.Bytes()/int64(c.TopK)*each*all
	// A token is not sent to a rank if all of its experts belong to other ranks.
	misses := 1.0
	for i := range c.TopK {
		misses *= max(0, float64(c.NumExperts-s.experts-i)) / float64(c.NumExperts-i)
	}
	pairs := float64(tokens*c.TopK) / float64(ranks) // that a rank sends to each other rank
	rows := toEach(ranks, float64(tokens)*(1-misses)*rowBytes)
	s.out = rows.plus(toEach(ranks, pairs*float64(entry)))
	s.back = toEach(ranks, pairs*rowBytes)
	if sums {
		s.back = rows
	}
	groups, parts := 1, parallel.Chunks(c.NumExperts, ranks)
	if sums || ranks > 2 {
		groups, parts = parallel.Groups(parts, ranks, sums)
	}
	chunks := groups * parts
	part := s.back
	part.inside, part.outside = part.inside/float64(chunks), part.outside/float64(chunks)
	own := p.Forward / time.Duration(2*ranks)
	others := p.Forward - 2*own
	earlier := others * time.Duration(chunks-1) / time.Duration(chunks)
	s.left = waits(s.out, groups, own, others)
	s.left += max(0, part.took()-own, s.back.took()-own-earlier)
	s.left = max(s.left, s.out.took()+s.back.took()-p.Forward) // rows follow tokens on the same way

	words, router := toEach(ranks, pairs*4), toEach(ranks, float64(parallel.RouterBytes(c, ranks*tokens))/float64(ranks))
	// dW2 and dW1, half of the products of a backward pass, hide the rows of dX. dH, a sixth of them, hides rows of
	// dO.
	own, others = p.Backward/6/time.Duration(ranks), p.Backward/6-p.Backward/6/time.Duration(ranks)
	s.grads, s.gradsLeft = s.back.plus(rows), max(0, s.back.took()-p.Backward/2)+waits(rows, groups, own, others)
	for _, of := range append([]sent{words, words, router, toEach(ranks, lossSize*float64(tokens))}, sharedOver(c, ranks, tokens)...) {
		s.grads, s.gradsLeft = s.grads.plus(of), s.gradsLeft+of.took()
	}
	return s
}

// waits returns how long products wait for rows, which arrive in groups of equal size. own is the time of the
// products before the first group, and others the time of the products of all groups.
func waits(rows sent, groups int, own, others time.Duration) (left time.Duration) {
	for g := range groups {
		arrived := time.Duration(float64(rows.took()) * float64(g+1) / float64(groups))
		left = max(left, arrived-own-others*time.Duration(g)/time.Duration(groups))
	}
	return left
}

// sharedOver returns what a rank sends for the gradients of shared experts. A rank sends a part of its
// partial sums to each rank that adds up this part, and then its own part of the gradients to all ranks.
// The gate is a router with one expert.
func sharedOver(c moe.Config, ranks, tokens int) (list []sent) {
	if c.SharedExperts == 0 {
		return nil
	}
	all, part := ranks*tokens, float64(ranks)
	elements := float64(parallel.SharedBytes(c, 1)) / 4
	list = append(list, toEach(ranks, float64(parallel.SharedBytes(c, all))/part/part), toEach(ranks, elements*float64(c.Type.Bytes())/part))
	if c.SharedGate {
		c.NumExperts = 1
		list = append(list, toEach(ranks, float64(parallel.RouterBytes(c, all))/part))
	}
	return list
}

// ranksOf returns the numbers of ranks of a list such as "8,64,512".
func ranksOf(list string) (ranks []int, err error) {
	for _, word := range strings.Split(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, command.Usagef("-ranks %s: want numbers of GPUs, such as 8 or 8,64", list)
		}
		ranks = append(ranks, n)
	}
	return ranks, nil
}

// writeRanks prints the figures of a rank for each plan and each number of ranks.
func writeRanks(out io.Writer, plans []plan, ranks []int, tokens int, sums bool) error {
	note := ""
	if sums {
		note = "Ranks send partial sums: O and DX do not have one GPU's bits.\n"
	}
	fmt.Fprintf(out, "One layer, %d tokens a rank, any expert as likely as any other. A PREDICTION: copies at %.0f GB/s in a host of %d GPUs, as measured\n"+
		"between two H200; %.0f GB/s a GPU between hosts, which is assumed; products at the roofline. Window and saved have room for all\n"+
		"tokens of all ranks. The last columns are the time of a pass over the time of one GPU with the same tokens a rank.\n%s\n", tokens, copyRate/1e9, hostRanks, netRate/1e9, note)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "model\tranks\texperts\tweights\twindow\tsaved\tsent forward\tbackward\tnot hidden\tbackward\tforward\tbackward\t")
	fmt.Fprintln(w, "\t\ta rank\tMiB\tMiB\tMiB\tMB\tMB\tms\tms\tof one GPU\tof one GPU\t")
	for _, p := range plans {
		for _, n := range ranks {
			if n > p.Config.NumExperts {
				fmt.Fprintf(w, "%s\t%d\tfewer experts than ranks\t\t\t\t\t\t\t\t\t\t\n", p.Name, n)
				continue
			}
			s := p.over(n, tokens, sums)
			ratio := func(pass, left time.Duration) float64 { return (pass + left).Seconds() / pass.Seconds() }
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%.0f\t%.0f\t%s\t%s\t%.2f\t%.2f\t\n", p.Name, n, s.experts, s.weights>>20, s.window>>20, s.saved>>20,
				s.out.plus(s.back).total()/1e6, s.grads.total()/1e6, ms(s.left), ms(s.gradsLeft), ratio(p.Forward, s.left), ratio(p.Backward, s.gradsLeft))
		}
	}
	return w.Flush()
}
