/* SPDX-License-Identifier: Apache-2.0 */
#include "cas_hook.h"

bool (*cas_hook)(void) = NULL;
