package ptx

import (
	"fmt"
	"strings"
)

// token is a word, a string with its quotes, or one punctuation character.
type token struct {
	text string
	line int
}

// tokenBytes is the expected number of bytes of text per token.
const tokenBytes = 4

// lex splits PTX into tokens. A word consists of letters, digits, _ $ % . and double colons. A
// single colon is a token by itself. lex drops comments and white space.
func lex(src string) ([]token, error) {
	out := make([]token, 0, len(src)/tokenBytes)
	line := 1
	for i := 0; i < len(src); {
		c := src[i]
		switch {
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case strings.HasPrefix(src[i:], "//"):
			end := strings.IndexByte(src[i:], '\n')
			if end < 0 {
				end = len(src) - i
			}
			if _, ok := parseName(src[i : i+end]); ok && betweenStatements(out) {
				out = append(out, token{src[i : i+end], line})
			}
			i += end
		case strings.HasPrefix(src[i:], "/*"):
			end := strings.Index(src[i+2:], "*/")
			if end < 0 {
				return nil, fmt.Errorf("line %d: comment is not closed by */", line)
			}
			line += strings.Count(src[i:i+2+end], "\n")
			i += end + 4
		case wordByte(c):
			end := wordEnd(src, i)
			out = append(out, token{src[i:end], line})
			i = end
		case c == '"':
			end := strings.IndexAny(src[i+1:], "\"\n")
			if end < 0 || src[i+1+end] != '"' {
				return nil, fmt.Errorf("line %d: a string is not closed", line)
			}
			out = append(out, token{src[i : i+end+2], line})
			i += end + 2
		case strings.IndexByte("{}[](),;<>@!|+-=", c) >= 0:
			out = append(out, token{src[i : i+1], line})
			i++
		default:
			return nil, fmt.Errorf("line %d: unexpected character %q", line, c)
		}
	}
	return out, nil
}

// wordEnd returns the end of the word that begins at src[i]. A single colon is a token by itself.
func wordEnd(src string, i int) int {
	j := i
	for j < len(src) && wordByte(src[j]) {
		if src[j] == ':' && (j+1 >= len(src) || src[j+1] != ':') {
			break
		}
		if src[j] == ':' {
			j++ // both colons of :: belong to the word
		}
		j++
	}
	if j == i { // the colon is not part of a word
		return i + 1
	}
	number := src[i] >= '0' && src[i] <= '9' && !strings.HasPrefix(src[i:], "0x") && !strings.HasPrefix(src[i:], "0X")
	if number && j+1 < len(src) && (src[j-1] == 'e' || src[j-1] == 'E') && (src[j] == '-' || src[j] == '+') { // the sign of an exponent belongs to the number
		for j++; j < len(src) && src[j] >= '0' && src[j] <= '9'; j++ {
		}
	}
	return j
}

// betweenStatements reports whether a statement may begin after the given tokens.
func betweenStatements(toks []token) bool {
	if len(toks) == 0 {
		return false
	}
	last := toks[len(toks)-1].text
	return last == "{" || last == ";" || strings.HasPrefix(last, namePrefix)
}

func wordByte(c byte) bool {
	return c == '_' || c == '$' || c == '%' || c == '.' || c == ':' ||
		'0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
