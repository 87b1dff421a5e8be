/* device_fit.h - `inferd bench fit`: a device_model.h file, from a device that is here or from a daemon's own steps.
 *
 * --model: times steps of many shapes (batches of decoding sequences and chunks of prompts, behind short and long contexts) on the compiled
 * device, with nothing around it, and fits the model's terms to the medians (fit_solve.h).
 * --steps: fits them to what a daemon tells of its last steps: with all that goes on around them, and with the pauses of its traffic. The file
 * speaks for steps like those only: sizes and contexts that did not occur are guessed from their neighbours. */
#pragma once

/* argv as main's; prints the JSON (or writes --out) and on standard error how well it fits. Exit status 0, 1, 2 (wrong usage). */
int bench_fit_main(int argc, char **argv);
