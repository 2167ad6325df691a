package ptx

import (
	"errors"
	"fmt"
	"strings"

	"sonicmoe/ptx/isa"
)

// Verify checks each instruction against the table: operands, version and target, labels, names,
// and counts of setmaxnreg. An error names the Go line or, for a parsed module, the line of the
// text.
func (m *Module) Verify() error {
	var errs []error
	names := map[string]bool{}
	for _, e := range m.Entries {
		if names[e.Name] {
			errs = append(errs, fmt.Errorf("kernel %s is defined twice", e.Name))
		}
		names[e.Name] = true
		v := verifier{m: m, e: e, symbols: map[string]bool{}, labels: map[string]bool{}}
		v.run()
		errs = append(errs, v.errs...)
	}
	for _, f := range m.Funcs {
		if names[f.Name] && !f.Declared {
			errs = append(errs, fmt.Errorf("function %s is defined twice", f.Name))
		}
		names[f.Name] = names[f.Name] || !f.Declared
		v := verifier{m: m, e: &f.Entry, symbols: map[string]bool{}, labels: map[string]bool{}}
		for _, r := range f.Results {
			v.declare(r.Name)
		}
		v.run()
		errs = append(errs, v.errs...)
	}
	for _, g := range m.Globals {
		if names[g.Name] { // assemblers crash if a variable has the name of a kernel or function
			errs = append(errs, fmt.Errorf("variable %s has the name of a kernel or function", g.Name))
		}
	}
	return errors.Join(errs...)
}

type verifier struct {
	m       *Module
	e       *Entry
	symbols map[string]bool
	labels  map[string]bool
	errs    []error
}

func (v *verifier) errorf(in *Inst, format string, args ...any) {
	where := fmt.Sprintf("line %d", in.Line)
	if in.pos != nil {
		where = in.pos.resolve().String()
	}
	v.report(fmt.Errorf("kernel %s, %s: %s", v.e.Name, where, fmt.Sprintf(format, args...)))
}

// add records an error that is about the kernel as a whole.
func (v *verifier) add(format string, args ...any) {
	v.report(fmt.Errorf("kernel %s: %s", v.e.Name, fmt.Sprintf(format, args...)))
}

// maxErrors is the largest number of mistakes that are reported for a kernel.
const maxErrors = 20

func (v *verifier) report(err error) {
	if len(v.errs) < maxErrors {
		v.errs = append(v.errs, err)
	}
}

func (v *verifier) declare(name string) {
	if v.symbols[name] {
		v.add("%s is declared twice", name)
	}
	v.symbols[name] = true
}

func (v *verifier) run() {
	for _, p := range v.e.Params {
		v.declare(p.Name)
	}
	for _, f := range v.m.Funcs {
		v.symbols[f.Name] = true
	}
	shared := 0
	for _, list := range [][]Variable{v.m.Globals, v.e.Shared, v.e.Local} {
		for _, g := range list {
			v.declare(g.Name)
			if g.Shared() {
				shared += g.Bytes
			}
		}
	}
	if shared > maxShared {
		v.add("%d bytes of shared variables, at most %d", shared, maxShared)
	}
	if n := v.e.ParamBytes(); n > maxParams {
		v.add("%d bytes of parameters, at most %d", n, maxParams)
	}
	for i := range v.e.Body {
		in := &v.e.Body[i]
		if in.Form == nil {
			if v.labels[in.Label] {
				v.errorf(in, "label %s is defined twice", in.Label)
			}
			v.labels[in.Label] = true
		}
	}
	for i := range v.e.Body {
		in := &v.e.Body[i]
		if in.Form != nil {
			v.inst(in)
			continue
		}
		v.operands(in)
	}
}

func (v *verifier) inst(in *Inst) {
	f := in.Form
	version, arch := in.needs()
	if version > v.m.Version {
		v.errorf(in, "%s needs .version %s, the module says %s", in.opcode(), version, v.m.Version)
	}
	if arch > v.m.Arch {
		v.errorf(in, "%s needs .target %s, the module says %s", in.opcode(), arch, v.m.Arch)
	}
	if pair, clash := f.Clash(in.Mods); clash {
		v.errorf(in, "%s: %s does not go with %s", in.opcode(), pair[0], pair[1])
	}
	if why := argsFit(v.e, f, in.Mods, in.Args); why != "" {
		v.errorf(in, "%s", why)
		return
	}
	v.operands(in)
	v.limits(in)
}

// operands checks that the labels and names in operands have been declared.
func (v *verifier) operands(in *Inst) {
	for i := range in.Args {
		o := &in.Args[i]
		for _, x := range o.List {
			if o.Kind == OpPassed && !v.symbols[x.Sym] {
				v.errorf(in, "no parameter or variable %s", x.Sym)
			}
		}
		switch {
		case o.Kind == OpLabel && !v.labels[o.Sym]:
			v.errorf(in, "no label %s", o.Sym)
		case (o.Kind == OpSymbol || o.Kind == OpAddr) && o.Sym != "" && !v.symbols[o.Sym]:
			v.errorf(in, "no parameter or variable %s", o.Sym)
		}
	}
}

// mapModes has the largest value of each tensor map field that tensormap.replace sets by an
// immediate.
var mapModes = map[string]int64{".elemtype": 15, ".interleave_layout": 2, ".swizzle_mode": 3, ".fill_mode": 1}

// immediate returns operand i if it is an integer constant.
func (in *Inst) immediate(i int) (int64, bool) {
	if i >= len(in.Args) || in.Args[i].Kind != OpInt {
		return 0, false
	}
	return in.Args[i].Imm, true
}

// limits checks the ranges of immediates. The assembler accepts some invalid ones, so the verifier
// must find them.
func (v *verifier) limits(in *Inst) {
	v.argLimits(in)
	v.formLimits(in)
}

// argLimits checks the immediates whose range depends on the argument.
func (v *verifier) argLimits(in *Inst) {
	for i, a := range in.Form.Args {
		n, ok := in.immediate(i)
		switch {
		case !ok:
		case (a.Name == "scaleA" || a.Name == "scaleB") && n != 1 && n != -1:
			v.errorf(in, "wgmma scale %d, must be 1 or -1", n)
		case (a.Name == "transA" || a.Name == "transB") && n != 0 && n != 1:
			v.errorf(in, "wgmma transposition %d, must be 0 or 1", n)
		case a.Below == 1 && n != 0:
			v.errorf(in, "%s: %s %d, must be 0", in.opcode(), a.Name, n)
		case a.Below > 0 && (n < 0 || n >= a.Below):
			v.errorf(in, "%s: %s %d, must be 0 to %d", in.opcode(), a.Name, n, a.Below-1)
		}
	}
}

// formLimits checks the immediates whose range depends on the instruction.
func (v *verifier) formLimits(in *Inst) {
	switch in.Form.ID {
	case isa.SetMaxNReg:
		if n, _ := in.immediate(0); n < 24 || n > 256 || n%8 != 0 {
			v.errorf(in, "setmaxnreg %d, must be a multiple of 8 from 24 to 256", n)
		}
		// Assemblers ignore setmaxnreg in a kernel without launch bounds. Text of other compilers
		// may therefore have it.
		if in.pos != nil && v.e.MinCTAs == 0 && v.e.MaxThreads == 0 && v.e.Block.Count() == 0 {
			v.errorf(in, "setmaxnreg without .maxntid, .reqntid or .minnctapersm has no effect; set launch bounds")
		}
	case isa.BarSync, isa.BarArrive:
		if n, ok := in.immediate(0); ok && (n < 0 || n > 15) {
			v.errorf(in, "barrier %d, must be 0 to 15", n)
		}
		if n, ok := in.immediate(1); ok && (n <= 0 || n%32 != 0) {
			v.errorf(in, "barrier of %d threads, must be a multiple of 32", n)
		}
	case isa.CpAsyncCG:
		if n, _ := in.immediate(2); n != 16 {
			v.errorf(in, "cp.async.cg of %d bytes, must be 16", n)
		}
	case isa.CpAsyncCA:
		if n, _ := in.immediate(2); n != 4 && n != 8 && n != 16 {
			v.errorf(in, "cp.async.ca of %d bytes, must be 4, 8 or 16", n)
		}
	case isa.MbarrierInit:
		if n, ok := in.immediate(1); ok && (n < 1 || n >= 1<<20) {
			v.errorf(in, "mbarrier count %d, must be 1 to %d", n, 1<<20-1)
		}
	case isa.MbarrierTryWaitParity, isa.MbarrierTestWaitParity:
		if n, ok := in.immediate(2); ok && n != 0 && n != 1 {
			v.errorf(in, "parity %d, must be 0 or 1", n)
		}
	case isa.TensormapReplaceMode:
		n, _ := in.immediate(1)
		for field, most := range mapModes {
			if strings.Contains(in.opcode(), field) && (n < 0 || n > most) {
				v.errorf(in, "tensormap.replace%s %d, must be 0 to %d", field, n, most)
			}
		}
	case isa.BulkLoad:
		if n, ok := in.immediate(2); ok && (n <= 0 || n%16 != 0) {
			v.errorf(in, "bulk copy of %d bytes, must be a multiple of 16", n)
		}
	}
}
