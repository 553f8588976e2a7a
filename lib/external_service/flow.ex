# Flow is waited for, since in the tests it is part of this project.
if match?({:module, _}, Code.ensure_compiled(Flow)) do
  defmodule ExternalService.Flow do
    @moduledoc """
    Makes a call of a service with each element of a flow. It is there where the `:flow` library is.

        urls
        |> ExternalService.Flow.map(:crawler, &MyApp.Client.get/1)
        |> Flow.filter(&match?({:ok, _page}, &1))
        |> Enum.to_list()

    Unlike `ExternalService.call_async_stream/3` the elements are the results themselves, in no particular order, and
    further stages of the flow run beside the calls.
    """

    @typedoc "A flow, or what `Flow.from_enumerable/2` makes one of."
    @type source :: Flow.t() | Enumerable.t()

    @type mapper :: (term() -> ExternalService.retriable_function_result())

    @doc "Returns a flow of the results of `ExternalService.call/2` with each element, which `fun` gets."
    @spec map(source(), ExternalService.service(), mapper()) :: Flow.t()
    def map(source, service, fun) when is_function(fun, 1),
      do: mapped(source, [], &ExternalService.call(service, fn -> fun.(&1) end))

    @doc """
    The same with the options of `ExternalService.call/3`, and those of `Flow.from_enumerable/2` for a source that is no
    flow.
    """
    @spec map(source(), ExternalService.service(), ExternalService.RetryOptions.t() | keyword(), mapper(), keyword()) ::
            Flow.t()
    def map(source, service, retry, fun, flow \\ []) when is_function(fun, 1),
      do: mapped(source, flow, &ExternalService.call(service, retry, fn -> fun.(&1) end))

    defp mapped(source, flow, call), do: source |> flow(flow) |> Flow.map(call)

    defp flow(source, options), do: if(is_struct(source, Flow), do: source, else: Flow.from_enumerable(source, options))
  end
end
