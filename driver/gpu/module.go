package gpu

// CompileOptions are options that change the machine code. They are part of every cache key, so
// the struct is comparable.
type CompileOptions struct {
	// LineInfo keeps PTX line numbers for profilers.
	LineInfo bool
	// OptLevel is the assembler's optimisation level, 1 to 4. 0 means its default.
	OptLevel int
}

// Image is machine code with the assembler's log.
type Image struct {
	Code []byte
	Log  string
}

// Module is loaded machine code.
type Module interface {
	Function(name string) (Function, error)
	Unload() error
}

// Function is a kernel that can be launched.
type Function interface {
	Name() string
	Attributes() (FunctionAttributes, error)
	// AllowSharedBytes raises the limit of a launch's dynamic shared memory, up to
	// driver.Target.SharedBytesPerCTA.
	AllowSharedBytes(bytes int) error
}

// FunctionAttributes holds properties of a compiled kernel.
type FunctionAttributes struct {
	Registers         int // for each thread
	LocalBytes        int // for each thread; more than 0 usually means spills
	StaticSharedBytes int
	ConstBytes        int
	MaxThreadsPerCTA  int
	PTXVersion        int // times ten
	BinaryVersion     int // times ten, 90 for sm_90
}
