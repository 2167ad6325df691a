// Package interrupt ends programs in order: no half-written file stays, workers
// go with their program.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Context ends with the first SIGINT (Ctrl-C) or SIGTERM (Slurm, Kubernetes). A
// second signal then ends the process at once. Call stop when the work is done.
func Context() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
