package report

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/strict"
)

// maxReport is the largest size of a file of measurements, in bytes.
const maxReport = 64 << 20

// oldest is the oldest schema that Read can read.
const oldest = 2

// Stored is the content of a file of measurements. The field for its kind is set, and the
// others are nil.
type Stored struct {
	Report     *Report
	Comparison *Comparison
	Decode     []DecodePoint
	Rounding   []RoundingPoint
}

// Read reads a report that Write wrote. From a report of an older schema it leaves out the
// measured tilings (Points) and the fit, and adds a warning to the report.
func Read(ctx context.Context, path string) (*Report, error) {
	s, err := ReadStored(ctx, path)
	if err == nil && s.Report == nil {
		err = fmt.Errorf("%s has no report of passes, must be a file of bench -json without -decode and -rounding", path)
	}
	return s.Report, err
}

// ReadStored reads a file of bench -json, or a comparison such as h200/speed.json.
func ReadStored(ctx context.Context, path string) (s Stored, err error) {
	data, err := disk.ReadFile(ctx, disk.OS, path, maxReport)
	if err != nil {
		return s, err
	}
	if s, err = parseStored(data); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return s, err
}

func parseStored(data []byte) (s Stored, err error) {
	var list []map[string]json.RawMessage
	if json.Unmarshal(data, &list) == nil && len(list) > 0 {
		switch {
		case list[0]["us"] != nil:
			return s, strict.Unmarshal(data, &s.Decode)
		case list[0]["rounding"] != nil:
			return s, strict.Unmarshal(data, &s.Rounding)
		}
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil || object["schema"] == nil && object["sonicmoe"] == nil {
		return s, fmt.Errorf("no file of bench -json, and no comparison such as examples/bench/h200/speed.json")
	}
	if object["sonicmoe"] != nil {
		c, err := ParseComparison(data)
		s.Comparison = &c
		return s, err
	}
	s.Report, err = parseReport(data)
	return s, err
}

// parseReport reads a report of any schema.
func parseReport(data []byte) (*Report, error) {
	var raw map[string]any
	if err := strict.Unmarshal(data, &raw); err != nil {
		return nil, err
	}
	number, _ := raw["schema"].(float64)
	if schema := int(number); schema < oldest || schema > Schema {
		return nil, fmt.Errorf("a report of schema %d, must be %d to %d: measure again", schema, oldest, Schema)
	} else if schema < Schema {
		renew(raw)
		raw["warnings"] = append(listOf(raw["warnings"]), fmt.Sprintf("a report of schema %d, converted without tilings and fit", schema))
		raw["schema"] = Schema
		var err error
		if data, err = json.Marshal(raw); err != nil {
			return nil, err
		}
	}
	r := new(Report)
	return r, strict.Unmarshal(data, r)
}

func listOf(v any) []any {
	list, _ := v.([]any)
	return list
}

// renew converts the rows of a report, or of its backward section, to the present schema. In
// schema 3 the shape included the tokens, "T,d,n,E,K". Schema 2 also had a field for the tiling
// of each product.
func renew(section map[string]any) {
	delete(section, "fit")
	for _, v := range listOf(section["rows"]) {
		row, _ := v.(map[string]any)
		shape, _ := row["shape"].(string)
		tokens, rest, _ := strings.Cut(shape, ",")
		row["tokens"], row["shape"] = json.Number(tokens), rest
		delete(row, "points")
		var tiles []any
		for _, product := range []string{"up", "down", "dh", "dx", "dw1", "dw2"} {
			if tiling, ok := row[product].(string); ok {
				tiles = append(tiles, Tiled{product, tiling})
			}
		}
		if tiles != nil {
			row["tiles"] = tiles
		}
	}
	if backward, ok := section["backward"].(map[string]any); ok {
		renew(backward)
	}
}
