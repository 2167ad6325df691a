// Package schedule distributes the tiles of a product over the CTAs of a persistent kernel.
package schedule
