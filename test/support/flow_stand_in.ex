# SPDX-License-Identifier: Apache-2.0

# In place of the :flow library, where that is not installed.
if match?({:error, _}, :code.lib_dir(:flow)) do
  defmodule Flow do
    @moduledoc """
    A flow with the part of `Flow`'s interface that is used here: it maps in a process of its own, in order.
    """

    defstruct [:producers, :options, operations: []]

    def from_enumerable(enumerable, options \\ []), do: %__MODULE__{producers: enumerable, options: options}

    def map(%__MODULE__{operations: operations} = flow, mapper) when is_function(mapper, 1),
      do: %{flow | operations: [mapper | operations]}

    defimpl Enumerable do
      def reduce(flow, acc, fun) do
        mapper = fn element -> List.foldr(flow.operations, element, & &1.(&2)) end
        results = Task.await(Task.async(fn -> Enum.map(flow.producers, mapper) end))
        Enumerable.reduce(results, acc, fun)
      end

      def count(_flow), do: {:error, __MODULE__}
      def member?(_flow, _element), do: {:error, __MODULE__}
      def slice(_flow), do: {:error, __MODULE__}
    end
  end
end
