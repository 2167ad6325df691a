module example.com/outside

go 1.26.0

require sonicmoe v0.0.0

require (
	aead.dev/minisign v0.3.0 // indirect
	github.com/ebitengine/purego v0.11.3 // indirect
	golang.org/x/crypto v0.53.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace sonicmoe => ../..
