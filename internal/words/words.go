// Package words checks the project's English against the style sheet in CONTRIBUTING.md. It
// finds phrases that make a new reader stop. A phrase found in a comment, a docstring or a page
// must be rewritten, or allowed with a reason.
package words

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// Rule is a phrase that the style sheet refuses.
type Rule struct {
	Name   string // the phrase, as the sheet names it
	Better string // what to write instead
	find   *regexp.Regexp
}

// Rules lists the refused phrases.
var Rules = []Rule{
	rule("so many, so few", "the name of the count", `\bso (?:many|few)\b`),
	rule("X are those of Y", "what X is", `\b(?:is|are|was|were|as|be) (?:that|those|the one|the ones) (?:of|which)\b`),
	rule("pronoun for a thing", "the name of the thing", `\b(?:that one's|this one's|the other one's|theirs|nobody(?:'s)?|whoever|whomever|whom|whose turn)\b`),
	rule("who, of a thing", "which, or the name of the thing", `(?:^|[.;:,(] ?)[Ww]ho (?:has|is|was|takes|reads|wants|waits|comes|had|does|makes|asks|routes?|needs)\b`),
	rule("Of … first", "subject first", `(?:^|[.;:] )Of (?:few|many|a|an|one|two|several|the|all|those|these|experts|tokens|goroutines|equal|each|both|\d+)\b`),
	rule("What … is", "subject first", `(?:^|[.;:] )What (?:is|was|are|were|a|an|the|it|they|few|many|passes|no|must|of|stands|comes|does|has)\b[^.?:;]{2,90} (?:is|are|was|were|falls|stands|comes|goes|counts|adds|shows|becomes)\b`),
	rule("behind, for after", "after", `\bbehind (?:it|that|its|this|them|each|such|all|the (?:wait|load|store|fence|copy|kernel|product|router|pass|up-projection|down-projection|main loop))\b`),
	rule("beside, for next to or with", "next to, with, in addition to", `\bbeside (?:no|it|them|that|this|its|their|the|a|an|each)\b`),
	rule("lone, alike, told", "single; the same; signalled or known", `\b(?:lone|alike|is told|are told|was told|were told|tells of|be told)\b`),
	rule("as it stands, has it", "unchanged; defines", `\b(?:as it stands|as they stand|as [A-Z]\w+ has it|has it that)\b`),
	rule("it is … that", "subject first", `\b[Ii]t is [^.]{3,40} that (?:makes|gives|takes|has|decides|tells|says)\b`),
	rule("few tokens, many tokens", "a small batch, a large batch", `\b(?:of|for|with|to|by|are|and|or) (?:few|many) tokens\b|\b(?:Few|Many) tokens\b|\b(?:few|many) tokens'`),
	rule("a measurement in a comment", "a page: examples/bench/h200", `\d(?:\.\d+)? (?:to|->|→|instead of|for|from) \d+\.\d+ ?(?:µs|ms|TFLOPS|GB/s)`),
}

func rule(name, better, expression string) Rule {
	return Rule{name, better, regexp.MustCompile(expression)}
}

// A Match is a refused phrase in a file.
type Match struct {
	File string
	Line int // counted from 1
	Text string
	Rule Rule
}

func (m Match) String() string {
	return fmt.Sprintf("%s:%d: %q: write %s: %s", m.File, m.Line, m.Rule.Name, m.Rule.Better, m.Text)
}

// Find returns the refused phrases in the prose of a file: all of a Markdown page, comments of
// Go and C, comments and docstrings of Python. Measurements belong in pages, so the rule
// against them does not apply to Markdown.
func Find(file, text string) (matches []Match) {
	ext, docstring := path.Ext(file), false
	for i, line := range strings.Split(text, "\n") {
		prose := line
		switch ext {
		case ".go", ".c", ".h":
			prose = afterMarker(line, "//")
		case ".py":
			quotes := strings.Count(line, `"""`)
			if !docstring && quotes == 0 {
				prose = afterMarker(line, "#")
			}
			docstring = docstring != (quotes%2 == 1)
		}
		prose = strings.TrimSpace(prose)
		for _, r := range Rules {
			if ext == ".md" && strings.HasPrefix(r.Name, "a measurement") {
				continue
			}
			if r.find.MatchString(prose) {
				matches = append(matches, Match{file, i + 1, prose, r})
			}
		}
	}
	return matches
}

// afterMarker returns the comment of a line: the text after the first marker that is not inside
// a string literal.
func afterMarker(line, marker string) string {
	before, comment, found := strings.Cut(line, marker)
	if !found || strings.Count(before, `"`)%2 == 1 || strings.Count(before, "`")%2 == 1 {
		return ""
	}
	return comment
}
