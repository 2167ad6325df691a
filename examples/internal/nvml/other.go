//go:build !(linux && (amd64 || arm64))

// Package nvml reads a GPU's energy from NVIDIA's management library.
package nvml

import "errors"

// Meter reads the energy of one GPU.
type Meter struct{}

// Open returns an error, because energy can be read only on Linux.
func Open(string) (*Meter, error) { return nil, errors.New("energy is read on Linux only") }

// Joules returns 0.
func (m *Meter) Joules() (float64, error) { return 0, nil }

// Close does nothing.
func (m *Meter) Close() error { return nil }
