package jit

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx"
)

// CompileError reports PTX that an assembler has refused. Its log names the Go lines that emitted
// the PTX.
type CompileError struct {
	Kernel string
	// Log is the assembler's text. After each number of a PTX line, it has the Go line that emitted
	// the instruction.
	Log   string
	cause error
}

// Error returns the kernel's name and the log.
func (e *CompileError) Error() string {
	return fmt.Sprintf("compiling kernel %s:\n%s", e.Kernel, strings.TrimRight(e.Log, "\n\x00"))
}

// Unwrap returns the assembler's or the device's error.
func (e *CompileError) Unwrap() error { return e.cause }

var logLine = regexp.MustCompile(`\bline (\d+)`)

func compileError(kernel string, text ptx.Text, err error) error {
	var e *driver.Error
	if !errors.As(err, &e) || !errors.Is(err, gpu.ErrCompile) {
		return fmt.Errorf("compiling kernel %s: %w", kernel, err)
	}
	log := e.Log
	if log == "" {
		log = e.Error()
	}
	log = logLine.ReplaceAllStringFunc(log, func(s string) string {
		n, _ := strconv.Atoi(s[len("line "):])
		if pos := text.Pos(n); len(pos) > 0 {
			return s + " (" + pos.String() + ")"
		}
		return s
	})
	return &CompileError{Kernel: kernel, Log: log, cause: err}
}
