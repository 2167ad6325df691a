package ptxas_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
	"sonicmoe/ptx/ptxas"
)

func TestMessages(t *testing.T) {
	report := "ptxas k.ptx, line 8; error   : no\nptxas k.ptx, line 12; warning : hm\nptxas fatal   : Ptx assembly aborted due to errors\n"
	assert.Equal(t, []ptxas.Message{{8, "error   : no"}, {12, "warning : hm"}}, ptxas.Messages(report))
	assert.Empty(t, ptxas.Messages("ptxas info    : Used 8 registers"))
}

func TestComplaint(t *testing.T) {
	for _, c := range []struct {
		line string
		bad  bool
	}{
		{"ptxas info    : Used 168 registers, used 1 barriers", false},
		{"    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", false},
		{"    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads", true},
		{"ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized", true},
		{"ptxas info    : (C7519) wgmma.fence injected", true},
		{"ptxas warning : something", true},
	} {
		assert.Equal(t, c.bad, ptxas.Complaint("first\n"+c.line+"\nlast") == c.line, c.line)
	}
}

func TestAssemble(t *testing.T) {
	const good = ".version 8.0\n.target sm_90a\n.visible .entry k() { ret; }\n"
	outside.Ptxas(t)
	cubin, report, err := ptxas.Assemble(context.Background(), []byte(good))
	require.NoError(t, err)
	assert.Equal(t, "\x7fELF", string(cubin[:4]))
	assert.Contains(t, report, "Used")
	bin, err := ptxas.Find()
	require.NoError(t, err)
	version, err := ptxas.Version(context.Background(), bin)
	require.NoError(t, err)
	assert.Regexp(t, `^\d+\.\d+\.\d+$`, version)
	_, err = ptxas.Version(context.Background(), "/dev/null")
	assert.Error(t, err)
	_, report, err = ptxas.AssembleFor(context.Background(), "sm_80", []byte(good))
	assert.Error(t, err, "code for one architecture is not for another")
	assert.Contains(t, report, "SM version")
	_, report, err = ptxas.Assemble(context.Background(), []byte(".version 8.0\n.target sm_90a\n.visible .entry k() {\nnothing;\n}\n"))
	require.Error(t, err)
	require.Len(t, ptxas.Messages(report), 1)
	assert.Equal(t, 4, ptxas.Messages(report)[0].Line)
}
