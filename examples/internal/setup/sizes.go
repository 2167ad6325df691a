package setup

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
)

// models lists layers of published models.
var models = []string{"gpt-oss-20b", "DeepSeek-V3", "Kimi-Linear-48B-A3B", "Qwen3-Next-80B", "OLMoE-1B-7B", "GLM-4.5-Air", "Mixtral 8x7B"}

// beyond returns sizes for which no speeds of other implementations are recorded. "DeepSeek-V3
// EP-8" is the share of one of eight GPUs, which has 32 of the 256 experts. With K = 8 it has as
// many rows as there are (token, expert) pairs of the GPU's own tokens.
func beyond() []peers.Row {
	return []peers.Row{
		size("gpt-oss-20b", 32768, 2880, 2880, 32, 4),
		size("Kimi-Linear-48B-A3B", 32768, 2304, 1024, 256, 8),
		size("GLM-4.5-Air", 32768, 4096, 1408, 128, 8),
		size("Mixtral 8x7B", 32768, 4096, 14336, 8, 2),
		size("DeepSeek-V3 EP-8", 32768, 7168, 2048, 32, 8),
	}
}

func size(name string, tokens, d, n, e, k int) peers.Row {
	return peers.Row{Name: name, Tokens: tokens, Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: e, TopK: k, TokensHint: tokens}}
}

// Known returns all sizes that have a name.
func Known() []peers.Row { return append(peers.All(), beyond()...) }

// Row returns the known size with a name. Upper and lower case are the same.
func Row(name string) (peers.Row, error) {
	known := Known()
	i := slices.IndexFunc(known, func(r peers.Row) bool { return strings.EqualFold(r.Name, strings.TrimSpace(name)) })
	if i < 0 {
		return peers.Row{}, fmt.Errorf("no size is named %q, -list prints the names", name)
	}
	return known[i], nil
}

// named returns the sizes that -rows names: "all" (the sizes for which speeds of other
// implementations are recorded), "slice", "models", "known", or names separated by commas.
func named(list string) ([]peers.Row, error) {
	names := strings.Split(list, ",")
	switch list {
	case "all", "slice":
		return peers.Select(list)
	case "known":
		return Known(), nil
	case "models":
		names = models
	}
	var found []peers.Row
	for _, name := range names {
		r, err := Row(name)
		if err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, nil
}

// shape returns a row for "d,n,E,K", without a number of tokens.
func shape(text string) (peers.Row, error) {
	fields := strings.Split(text, ",")
	var v [4]int
	if len(fields) != len(v) {
		return peers.Row{}, fmt.Errorf("has %d numbers, must be d,n,E,K: hidden, intermediate, experts, top-K (tokens are -tokens)", len(fields))
	}
	for i, f := range fields {
		n, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil || n < 1 {
			return peers.Row{}, fmt.Errorf("%q must be a whole number from 1", f)
		}
		v[i] = n
	}
	return size(text, 0, v[0], v[1], v[2], v[3]), nil
}

// Sizes holds the layers that a command line names.
type Sizes struct {
	rows   []peers.Row
	tokens int
	list   bool
}

// SizeFlags declares the flags -row, -shape, -tokens and -list. For programs that accept many
// sizes it also declares -rows.
func SizeFlags(set *flag.FlagSet, many bool) *Sizes {
	s := &Sizes{}
	again := ""
	if many {
		again = "; may be repeated"
		set.Func("rows", "`sizes` by name: all (with recorded peers), slice, models, known, or names with commas", func(list string) error {
			more, err := named(list)
			s.rows = append(s.rows, more...)
			return err
		})
	}
	add := func(parse func(string) (peers.Row, error)) func(string) error {
		return func(text string) error {
			r, err := parse(text)
			if err == nil && !many && len(s.rows) > 0 {
				return fmt.Errorf("one size is allowed, and %s was given", s.rows[0].Name)
			}
			s.rows = append(s.rows, r)
			return err
		}
	}
	set.Func("row", "a size by `name`, such as \"7B n=256\""+again, add(Row))
	set.Func("shape", "a size as `d,n,E,K`: hidden, intermediate, experts, top-K"+again, add(shape))
	set.Func("tokens", "tokens of a call `T` (default: those of a named size)", func(text string) (err error) {
		if s.tokens, err = strconv.Atoi(text); err == nil && s.tokens < 1 {
			err = fmt.Errorf("must be at least 1")
		}
		return err
	})
	set.BoolVar(&s.list, "list", false, "print the sizes that have a name, and end")
	return s
}

// Listed writes the known sizes to w if -list was given, and reports whether it was.
func (s *Sizes) Listed(w io.Writer) bool {
	if s.list {
		for _, r := range Known() {
			fmt.Fprintf(w, "%-20s T=%-6d %v\n", r.Name, r.Tokens, r.Config)
		}
	}
	return s.list
}

// Rows returns the sizes in the order of the command line. -tokens sets their number of tokens.
// A -shape without -tokens has 0 tokens.
func (s *Sizes) Rows() []peers.Row {
	list := slices.Clone(s.rows)
	for i, r := range list {
		list[i] = s.Call(r)
	}
	return list
}

// Call returns a size, such as a program's default, with the number of tokens that -tokens
// gives. If this changes the number, the speeds that were recorded for other implementations
// are removed.
func (s *Sizes) Call(r peers.Row) peers.Row {
	if s.tokens == 0 || s.tokens == r.Tokens {
		return r
	}
	r.Config.TokensHint = s.tokens
	return peers.Row{Name: r.Name, Tokens: s.tokens, Config: r.Config}
}

// Tokens returns the value of -tokens, or 0 without the flag.
func (s *Sizes) Tokens() int { return s.tokens }

// Calls is like [Sizes.Rows], for programs that run the sizes. A size without a number of
// tokens is an error.
func (s *Sizes) Calls() ([]peers.Row, error) {
	list := s.Rows()
	for _, r := range list {
		if r.Tokens == 0 {
			return nil, command.Usagef("-shape %s needs -tokens, the tokens of a call", r.Name)
		}
	}
	return list, nil
}
