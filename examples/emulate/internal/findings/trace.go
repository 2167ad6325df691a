package findings

import (
	"bytes"
	"context"
	"errors"
	"io"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/disk"
	"sonicmoe/ptx/emu"
)

// WriteTrace runs a launch on a copy of the memory and writes a trace of it. The run looks for no
// races and goes on after findings if it can. With late set, copies and products complete late, so
// that the trace shows them in flight. A fault ends the trace and is no error: the runs that follow
// report it.
func WriteTrace(ctx context.Context, file string, ctas int, kernel *emu.Kernel, memory *emu.Memory, l emu.Launch, late bool) error {
	if late {
		l.Timing = emu.Late
	}
	if l.Timing == emu.Chosen {
		return command.Usagef("-trace has no order %v, must be early, late or random", l.Timing)
	}
	trace := emu.Trace{Most: ctas}
	l.Trace, l.Report, l.Print, l.Known, l.Parallel = &trace, nil, nil, nil, 1
	l.GoOn = func(*emu.Fault) bool { return true }
	ran := kernel.Launch(ctx, memory.Clone(), l)
	if errors.As(ran, new(*emu.Fault)) {
		ran = nil
	}
	return errors.Join(ran, disk.WriteFile(disk.OS, file, 0o644, func(w io.Writer) error {
		var text bytes.Buffer
		if err := trace.Write(&text); err != nil {
			return err
		}
		_, err := io.WriteString(w, Readable(text.String()))
		return err
	}))
}
