package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// When the layer ends with a request in its hands, the client is told so, and
// the server closes.
func TestLayerThatEnds(t *testing.T) {
	ctx, ended := context.WithCancel(t.Context())
	requests := make(chan request)
	web := httptest.NewServer(handler(ctx, requests))
	go func() {
		<-requests
		ended()
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			if _, err := post(web.URL, 1); err == nil || !strings.Contains(err.Error(), "503") {
				t.Errorf("the client got %v, want a 503", err)
			}
		}
		web.Close()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the client waits for ever")
	}
}
