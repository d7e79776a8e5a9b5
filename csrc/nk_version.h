/* The version, where no kernel reads it: a new one compiles none of them again. */
#ifndef NK_VERSION_H
#define NK_VERSION_H

#define NK_VERSION "0.2.0"

#endif
