package main

import (
	"runtime"
	"runtime/debug"
	"time"
)

// about is the answer of /version.
type about struct {
	Program string `json:"program"`
	// Version is the version of the module. Revision is the commit; a "+" at its end means that
	// files differ from the commit.
	Version  string       `json:"version"`
	Revision string       `json:"revision,omitempty"`
	Go       string       `json:"go"`
	Device   string       `json:"device"`
	Driver   string       `json:"driver"`
	Layers   []aboutLayer `json:"layers"`
}

type aboutLayer struct {
	Layer  int    `json:"layer"`
	Model  string `json:"model"` // model_type, or "random weights"
	Config string `json:"config"`
	Hidden int    `json:"hidden"`
	Type   string `json:"type"`
	// Tokens is the largest number of tokens of a request.
	Tokens  int      `json:"tokens"`
	Remarks []string `json:"remarks,omitempty"`
}

func (s *server) about() about {
	a := about{Program: program.Name, Go: runtime.Version(), Device: s.dev.Target().Name, Driver: s.dev.Producer(), Layers: []aboutLayer{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		a.Version = info.Main.Version
		changed := ""
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "vcs.revision":
				a.Revision = setting.Value
			case setting.Key == "vcs.modified" && setting.Value == "true":
				changed = "+"
			}
		}
		a.Revision += changed
	}
	for _, b := range s.loaded() {
		c := b.layer.Config()
		a.Layers = append(a.Layers, aboutLayer{b.from.number, b.from.name(), c.String(), c.Hidden, c.Type.String(), b.most, b.from.remarks})
	}
	return a
}

// overview is the answer of /stats, which the page shows.
type overview struct {
	// State is "ready", or the reason why the service is not ready.
	State string `json:"state"`
	// Seconds is the time since the service started.
	Seconds float64      `json:"seconds"`
	Device  string       `json:"device"`
	Layers  []statsLayer `json:"layers"`
}

type statsLayer struct {
	Layer int    `json:"layer"`
	Name  string `json:"name"`
	snapshot
}

var begun = time.Now()

func (s *server) overview() overview {
	o := overview{State: "ready", Seconds: time.Since(begun).Seconds(), Device: s.dev.Target().Name, Layers: []statsLayer{}}
	if err := s.unready(); err != nil {
		o.State = err.Error()
	}
	for _, b := range s.loaded() {
		o.Layers = append(o.Layers, statsLayer{b.from.number, b.from.name(), b.snapshot()})
	}
	return o
}
