// Package schedule distributes tiles over the CTAs of a persistent kernel.
package schedule
