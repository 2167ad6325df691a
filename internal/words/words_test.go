package words

import (
	"iter"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxAllowed is the largest number of exceptions in testdata/allowed.txt.
const maxAllowed = 40

// maxLeft is the largest number of refused phrases without an exception.
const maxLeft = 0

// root is the path of the repository.
var root = filepath.Join("..", "..")

// tracked yields the names and texts of the files that git tracks.
func tracked(t *testing.T) iter.Seq2[string, string] {
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skip("the files are listed by git, which is missing here: ", err)
	}
	return func(yield func(file, text string) bool) {
		for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			text, err := os.ReadFile(filepath.Join(root, file))
			if os.IsNotExist(err) {
				continue // deleted, but the deletion is not yet committed
			}
			require.NoError(t, err)
			if !yield(file, string(text)) {
				return
			}
		}
	}
}

// TestPhrases checks every tracked page, comment and docstring against the style sheet.
// testdata/allowed.txt lists the exceptions. Each line has a file, a part of the refused line
// and a reason, separated by tabs.
func TestPhrases(t *testing.T) {
	allowed, left := readAllowed(t), 0
	for file, text := range tracked(t) {
		base := path.Base(file)
		switch path.Ext(file) {
		case ".go", ".md", ".py", ".c", ".h":
		default:
			continue
		}
		generated := strings.HasPrefix(base, "z") && path.Ext(file) == ".go"
		if generated || strings.Contains(file, "testdata/") || strings.HasPrefix(file, "internal/words/") {
			continue
		}
		for _, m := range Find(file, text) {
			if !allowed.has(m) {
				left++
				t.Log(m)
			}
		}
	}
	require.LessOrEqual(t, left, maxLeft, "refused phrases: go test ./internal/words -v lists them")
	for _, a := range allowed {
		if !a.used {
			t.Errorf("testdata/allowed.txt allows %q in %s, which no longer stands there", a.part, a.file)
		}
	}
}

// TestPlantedPhrases checks that each rule finds its phrase in each kind of prose, and that it
// ignores code and strings.
func TestPlantedPhrases(t *testing.T) {
	planted := map[string]string{
		"so many, so few":             "a stage has so many k-tiles",
		"X are those of Y":            "The rows are those of the expert.",
		"pronoun for a thing":         "the ring is nobody's",
		"who, of a thing":             "A warp, who waits here, is done.",
		"Of … first":                  "Of two tiles the first counts.",
		"What … is":                   "What the kernel adds is rounded.",
		"behind, for after":           "stores come behind the wait",
		"beside, for next to or with": "H lies beside the scores",
		"lone, alike, told":           "a lone token",
		"as it stands, has it":        "X is read as it stands",
		"it is … that":                "it is the router that decides",
		"few tokens, many tokens":     "kernels for few tokens",
		"a measurement in a comment":  "which took 12.5 to 11.3 µs",
	}
	for _, r := range Rules {
		phrase, ok := planted[r.Name]
		require.True(t, ok, r.Name)
		for file, line := range map[string]string{
			"a.go": "x := 1 // " + phrase, "a.c": "// " + phrase, "a.py": "# " + phrase, "b.py": "\"\"\"\n" + phrase + "\n\"\"\"", "a.md": phrase,
		} {
			if file == "a.md" && strings.HasPrefix(r.Name, "a measurement") {
				require.Empty(t, Find(file, line))
				continue
			}
			found := Find(file, line)
			require.NotEmpty(t, found, "%s in %s", r.Name, file)
			require.Equal(t, r.Name, found[0].Rule.Name, file)
		}
		require.Empty(t, Find("a.go", `x := "// `+phrase+`"`), r.Name)
		require.Empty(t, Find("a.py", "x = 1"), r.Name)
	}
	require.Empty(t, Find("a.go", "// Ring is a circular buffer of stages. A producer fills it, consumers empty it."))
}

type exception struct {
	file, part, reason string
	used               bool
}

type exceptions []*exception

func (a exceptions) has(m Match) bool {
	for _, e := range a {
		if e.file == m.File && strings.Contains(m.Text, e.part) {
			e.used = true
			return true
		}
	}
	return false
}

func readAllowed(t *testing.T) (all exceptions) {
	text, err := os.ReadFile(filepath.Join("testdata", "allowed.txt"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		parts := strings.Split(line, "\t")
		require.Len(t, parts, 3, "testdata/allowed.txt: %q: want file, part of the line, reason", line)
		require.NotEmpty(t, parts[2], "testdata/allowed.txt: %q has no reason", line)
		all = append(all, &exception{file: parts[0], part: parts[1], reason: parts[2]})
	}
	require.LessOrEqual(t, len(all), maxAllowed, "testdata/allowed.txt")
	return all
}
