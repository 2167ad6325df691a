package main

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sonicmoe_"+name, help, labels, nil)
}

// These are the descriptions of the metrics. Counters of a layer have the layer's number as a
// label.
var (
	descPasses   = describe("passes_total", "Forward passes.", "layer")
	descBatched  = describe("batched_requests_total", "Requests in those passes.", "layer")
	descTokens   = describe("tokens_total", "Tokens in those passes.", "layer")
	descDropped  = describe("dropped_requests_total", "Requests whose client went away before their pass.", "layer")
	descWaiting  = describe("waiting_requests", "Requests that are waiting.", "layer")
	descAnswers  = describe("answers_total", "Answers by HTTP status.", "layer", "status")
	descRows     = describe("expert_rows_total", "Rows of each expert.", "layer", "expert")
	descLatency  = describe("latency_seconds", "Time from a request to its answer.", "layer")
	descReady    = describe("ready", "1 if the service takes requests.")
	descDevice   = describe("device_info", "1, with the device's name and driver as labels.", "name", "driver")
	descFree     = describe("device_memory_free_bytes", "Free memory of the device.")
	descTotal    = describe("device_memory_total_bytes", "Memory of the device.")
	allOfMetrics = []*prometheus.Desc{descPasses, descBatched, descTokens, descDropped, descWaiting, descAnswers, descRows, descLatency, descReady, descDevice, descFree, descTotal}
)

// collector passes the server's metrics to the Prometheus library.
type collector struct{ *server }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range allOfMetrics {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	ready := 0.
	if c.unready() == nil {
		ready = 1
	}
	send(descReady, prometheus.GaugeValue, ready)
	send(descDevice, prometheus.GaugeValue, 1, c.dev.Target().Name, c.dev.Producer())
	if free, total, err := c.dev.Memory(); err == nil {
		send(descFree, prometheus.GaugeValue, float64(free))
		send(descTotal, prometheus.GaugeValue, float64(total))
	}
	for _, b := range c.loaded() {
		layer, s := strconv.Itoa(b.from.number), b.snapshot()
		send(descPasses, prometheus.CounterValue, float64(s.Passes), layer)
		send(descBatched, prometheus.CounterValue, float64(s.Requests), layer)
		send(descTokens, prometheus.CounterValue, float64(s.Tokens), layer)
		send(descDropped, prometheus.CounterValue, float64(s.Dropped), layer)
		send(descWaiting, prometheus.GaugeValue, float64(s.Waiting), layer)
		for status, n := range s.Answers {
			send(descAnswers, prometheus.CounterValue, float64(n), layer, strconv.Itoa(status))
		}
		for expert, n := range s.Experts {
			send(descRows, prometheus.CounterValue, float64(n), layer, strconv.Itoa(expert))
		}
		to <- prometheus.MustNewConstHistogram(descLatency, s.count, s.seconds, s.below, layer)
	}
}

// metricsHandler returns the handler of /metrics, which has the service, the device, the
// process and Go's runtime.
func metricsHandler(s *server) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{Registry: r})
}
