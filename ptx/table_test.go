package ptx_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
	"sonicmoe/ptx/ptxas"
)

// everyForm returns three instructions for every row of the table and every modifier: one with
// registers only, two with random constants.
func everyForm() []ptx.Inst {
	var body []ptx.Inst
	for i := range isa.Table {
		f := &isa.Table[i]
		s := sampler{rng: rand.New(rand.NewPCG(1, uint64(i)))}
		for _, m := range variants(f) {
			s.constants = false
			body = append(body, s.inst(f, m))
			s.constants = true
			body = append(body, s.inst(f, m), s.inst(f, m))
		}
	}
	mov := &isa.Table[isa.Mov]
	for i, sp := range isa.Specials {
		s := sampler{rng: rand.New(rand.NewPCG(1, 1))}
		for alt, name := range mov.Mods[0].Alts {
			if name == "."+sp.Type.String() {
				body = append(body, ptx.Inst{Form: mov, Mods: isa.Mods{uint8(alt + 1)},
					Args: []ptx.Operand{s.reg(sp.Type), {Kind: ptx.OpSpecial, Reg: int32(i)}}})
			}
		}
	}
	return body
}

type need struct {
	version isa.Version
	arch    isa.Arch
}

// needOf returns the version and target that a module with this one instruction needs.
func needOf(in ptx.Inst) need {
	v, a := in.Form.Needs(in.Mods)
	for _, o := range in.Args {
		if o.Kind == ptx.OpSpecial {
			a = max(a, isa.Specials[o.Reg].Arch)
			v = max(v, isa.Specials[o.Reg].Version, a.MinVersion())
		}
	}
	return need{v, a}
}

// assembleAt assembles the instructions for a version and target. It returns the assembler's
// complaints, by the index of the instruction.
func assembleAt(t *testing.T, n need, body []ptx.Inst) map[int]string {
	t.Helper()
	m := sampleModule()
	m.Version, m.Arch = n.version, n.arch
	e := m.Entries[0]
	e.Body = append(start(), body...)
	for i := range e.Body { // every instruction is reachable because exits and branches are conditional
		if f := e.Body[i].Form; f != nil && f.Effects&(isa.Branches|isa.Exits) != 0 {
			e.Body[i].Guard = 1
		}
	}
	e.Body = append(e.Body, ptx.Inst{Form: &isa.Table[isa.Ret]})
	text := m.Print()
	printed, err := ptx.Parse(text.PTX)
	require.NoError(t, err)
	bad := map[int]string{}
	outside.Ptxas(t)
	_, report, err := ptxas.Assemble(t.Context(), text.PTX, "-O0")
	lines := strings.Split(string(text.PTX), "\n")
	byLine := map[int]int{}
	for i, in := range printed.Entries[0].Body {
		byLine[in.Line] = i - len(start())
	}
	for _, msg := range ptxas.Messages(report) {
		if strings.HasPrefix(msg.Text, "info") { // a remark is not a refusal, for example that an instruction is slow on other chips
			continue
		}
		if i, ok := byLine[msg.Line]; ok {
			bad[i] = fmt.Sprintf("%s: %s", strings.TrimSpace(lines[msg.Line-1]), msg.Text)
		} else {
			bad[-1] = lines[msg.Line-1] + ": " + msg.Text
		}
	}
	if err != nil && len(bad) == 0 {
		bad[-1] = err.Error()
	}
	return bad
}

func TestAssemblerAcceptsEveryForm(t *testing.T) {
	groups := map[need][]ptx.Inst{}
	for _, in := range everyForm() {
		n := needOf(in)
		if g := groups[n]; testing.Short() && len(g) > 0 && g[len(g)-1].Form == in.Form {
			continue // test only the first modifiers of a form
		}
		groups[n] = append(groups[n], in)
	}
	for n, body := range groups {
		t.Run(n.version.String()+" "+n.arch.String(), func(t *testing.T) {
			for i, msg := range assembleAt(t, n, body) {
				if i < 0 {
					t.Error(msg)
				} else {
					t.Errorf("row %s: %s", body[i].Form.Name, msg)
				}
			}
		})
	}
}

// TestNeedsAreTheLowest checks the version and target in the table: the assembler must refuse an
// instruction with a lower version, and with a lower target.
func TestNeedsAreTheLowest(t *testing.T) {
	versions := []isa.Version{70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84, 85, 86, 87}
	below := map[need][]ptx.Inst{}
	for _, in := range everyForm() {
		n := needOf(in)
		for i := 1; i < len(versions); i++ {
			if versions[i] == n.version && versions[i-1] >= n.arch.MinVersion() {
				low := need{versions[i-1], n.arch}
				below[low] = append(below[low], in)
			}
		}
		if n.arch > isa.SM70 {
			low := need{n.version, n.arch - 1}
			below[low] = append(below[low], in)
		}
	}
	for n, body := range below {
		bad := assembleAt(t, n, body)
		said := map[string]bool{}
		for i, in := range body {
			text := in.Form.Name
			for j := range in.Form.Mods {
				if k := in.Mods[j]; k > 0 {
					text += in.Form.Mods[j].Alts[k-1]
				}
			}
			if bad[i] == "" && !said[text] {
				said[text] = true
				t.Errorf("row %s assembles below its need, at %s %s", text, n.version, n.arch)
			}
		}
	}
}

func TestEveryFormSurvivesPrintAndParse(t *testing.T) {
	body := everyForm()
	m := sampleModule()
	m.Entries[0].Body = append(start(), body...)
	first := m.Print()
	parsed, err := ptx.Parse(first.PTX)
	require.NoError(t, err)
	require.Equal(t, string(first.PTX), string(parsed.Print().PTX))
	for i, in := range parsed.Entries[0].Body[len(start()):] {
		if want := body[i].Form; len(in.Form.Op) <= len(want.Op) { // a row with a longer Op is a special case of row want
			require.Equal(t, want.Name, in.Form.Name, "line %d", in.Line)
			require.Equal(t, body[i].Mods, in.Mods, "row %s", in.Form.Name)
		}
	}
	assert.NoError(t, parsed.Verify())
}

// randomModule returns a module whose kernels have random instructions, guards, labels, parameters,
// variables and directives.
func randomModule(seed uint64) *ptx.Module {
	rng := rand.New(rand.NewPCG(seed, 7))
	s := sampler{rng: rng, constants: true}
	m := sampleModule()
	m.Version = []isa.Version{80, 81, 83, 86, 90}[rng.IntN(5)]
	if rng.IntN(2) == 0 {
		m.Globals = append(m.Globals, ptx.Variable{Name: "table", Align: 1 << rng.IntN(10), Bytes: 1 + rng.IntN(999)})
	}
	e := m.Entries[0]
	e.MaxThreads, e.MinCTAs = rng.IntN(2)*128, rng.IntN(3)
	if rng.IntN(2) == 0 {
		e.Block, e.Cluster = ptx.Dims{256, 1 + rng.IntN(2), 1}, ptx.Dims{1, 1 + rng.IntN(3), 1 + rng.IntN(2)}
	}
	for i := range rng.IntN(4) {
		t := []isa.Type{isa.U32, isa.U64, isa.F32, isa.B64, isa.U16}[rng.IntN(5)]
		p := ptx.Param{Name: fmt.Sprintf("extra%d", i), Type: t, Align: t.Bytes(), Bytes: t.Bytes()}
		if rng.IntN(3) == 0 {
			p.Type, p.Align, p.Bytes = isa.B8, 1<<rng.IntN(7), 1+rng.IntN(64)
		}
		e.Params = append(e.Params, p)
	}
	if rng.IntN(2) == 0 {
		e.Decls = append(e.Decls, ptx.RegDecl{Class: isa.F32, Prefix: "%alone"})
		e.Registers = append(e.Registers, ptx.Register{Name: "%alone", Class: isa.B32})
	}
	e.Body = append(e.Body, start()...)
	for i := range 1 + rng.IntN(30) {
		f := &isa.Table[rng.IntN(len(isa.Table))]
		in := s.inst(f, s.mods(f))
		if rng.IntN(4) == 0 {
			in.Guard, in.GuardNot = int32(1+rng.IntN(8)), rng.IntN(2) == 0
		}
		e.Body = append(e.Body, in)
		if rng.IntN(5) == 0 {
			e.Body = append(e.Body, ptx.Inst{Label: fmt.Sprintf("$L%d", i)})
		}
	}
	return m
}

func TestRandomKernelsSurvivePrintAndParse(t *testing.T) {
	for seed := range uint64(500) {
		first := randomModule(seed).Print()
		parsed, err := ptx.Parse(first.PTX)
		require.NoError(t, err, "seed %d\n%s", seed, first.PTX)
		if again := parsed.Print(); !bytes.Equal(first.PTX, again.PTX) {
			t.Fatalf("seed %d:\n%s\nbecame\n%s", seed, first.PTX, again.PTX)
		}
	}
}
