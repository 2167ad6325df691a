package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/modelcard"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/moe"
)

// execute runs the layer. It returns the line to print, followed by the remarks on the model.
// It checks the files before it opens a device.
func execute(ctx context.Context, o options, stderr io.Writer) (text string, err error) {
	closing := func(close func() error) { err = errors.Join(err, close()) }
	if o.store != "" {
		return store(ctx, o)
	}
	j, err := openJob(ctx, o)
	if err != nil {
		return "", err
	}
	defer closing(j.Close)
	out, err := createOutput(o.output, o.weights, o.input)
	if err != nil {
		return "", err
	}
	defer closing(out.discard)
	dev, _, err := setup.OpenDevice(ctx, o.device, stderr)
	if err != nil {
		return "", err
	}
	defer closing(dev.Close)

	started := time.Now()
	layer, err := moe.New(ctx, dev, j.config, layerOptions(o, j.backward, stderr)...)
	if err != nil {
		return "", err
	}
	made := time.Since(started)
	m, err := newMemory(dev, chunkBytes)
	if err != nil {
		return "", err
	}
	defer closing(m.Close)
	p := pass{job: j, layer: layer, memory: m}
	if err := p.run(ctx, out); err != nil {
		return "", err
	}
	text = fmt.Sprintf("wrote %s from %s on %s, T=%d %v: load %s (%.3g MB), moe.New %s, forward %s",
		o.output, j.input.path, dev.Target().Name, j.tokens, j.config,
		seconds(p.loaded), float64(p.bytes)/1e6, seconds(made), seconds(p.forwarded))
	if j.routed {
		text += ", experts alone, routed as the input says"
	}
	if j.backward {
		text += ", backward " + seconds(p.backwarded)
	}
	if j.model != nil {
		text += remarks(o, j)
	}
	return text, nil
}

// remarks returns a line for each remark on the model of the job.
func remarks(o options, j *job) (text string) {
	for _, remark := range modelcard.Remarks(j.model.Model) {
		text += fmt.Sprintf("\n%s: %s", o.model, remark)
	}
	return text
}

// store writes the layer of a model to a file. It returns the line to print, followed by the
// remarks on the model.
func store(ctx context.Context, o options) (text string, err error) {
	j := &job{}
	defer func() { err = errors.Join(err, j.Close()) }()
	if err := j.openWeights(ctx, o); err != nil {
		return "", err
	}
	out, err := createOutput(o.store)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.discard()) }()
	if err := j.model.Store(ctx, out.file); err != nil {
		return "", err
	}
	if err := out.file.Commit(); err != nil {
		return "", fmt.Errorf("output: %s: %w", o.store, err)
	}
	return fmt.Sprintf("%s: %v", o.store, j.model.Config) + remarks(o, j), nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3g s", d.Seconds()) }

// layerOptions returns the options of moe.New: the cache, the logger, and the passes for which
// the layer needs kernels.
func layerOptions(o options, backward bool, stderr io.Writer) []moe.Option {
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	kept := cache.Open(cache.Options{Dir: o.cache, Logger: logger}) // an empty Dir means the user's cache, and "off" means none
	list := []moe.Option{moe.WithLogger(logger), moe.WithCache(kept)}
	if !backward {
		list = append(list, moe.WithoutBackward())
	}
	return list
}
