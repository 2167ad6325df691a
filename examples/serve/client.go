package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/http"
	"time"
)

// tokens is the JSON form of a request and of an answer: a row of numbers for each token.
type tokens struct {
	Tokens [][]float32 `json:"tokens"`
}

// ask is a client that sends the same tokens again and again until ctx ends.
func ask(ctx context.Context, url string, width int, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 3))
	for ctx.Err() == nil {
		in := tokens{make([][]float32, 1+random.IntN(4))}
		for i := range in.Tokens {
			for range width {
				in.Tokens[i] = append(in.Tokens[i], float32(random.NormFloat64()*math.Exp(random.NormFloat64()/4)))
			}
		}
		body, err := json.Marshal(in)
		if err != nil {
			return
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return
		}
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
		}
		select {
		case <-time.After(time.Duration(random.ExpFloat64() * 2e7)):
		case <-ctx.Done():
		}
	}
}
