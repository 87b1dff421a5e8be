/* device_fit.h - `inferd bench fit MODEL`: a device_model.h file of a device that is here.
 *
 * Times steps of many shapes (batches of decoding sequences and chunks of prompts, behind short and long contexts) on the compiled device,
 * with nothing around it, and fits the model's terms to the medians by least squares of relative errors with no term below zero. */
#pragma once

/* argv as main's; prints the JSON (or writes --out) and on standard error how well it fits. Exit status 0, 1, 2 (wrong usage). */
int bench_fit_main(int argc, char **argv);
