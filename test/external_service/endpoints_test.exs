# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.EndpointsTest do
  use ExternalService.Case, async: true

  doctest ExternalService.Endpoints
end
