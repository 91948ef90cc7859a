USE Store
GO
CREATE PROCEDURE dbo.PackOrders
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @handle uniqueidentifier, @type sysname, @body xml;
    WHILE (1 = 1)
    BEGIN
        BEGIN TRANSACTION;
        WAITFOR (
            RECEIVE TOP (1)
                @handle = conversation_handle,
                @type = message_type_name,
                @body = CAST(message_body AS xml)
            FROM dbo.PackingQueue
        ), TIMEOUT 5000;
        IF (@@ROWCOUNT = 0) BEGIN ROLLBACK; BREAK; END
        IF (@type = N'//shop/Order')
        BEGIN
            SEND ON CONVERSATION @handle MESSAGE TYPE [//shop/Packed] (@body);
        END
        ELSE IF @type = N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog'
            END CONVERSATION @handle
        ELSE IF @type = N'http://schemas.microsoft.com/SQL/ServiceBroker/Error'
            END CONVERSATION @handle;
        ELSE
            END CONVERSATION @handle WITH ERROR = 500 DESCRIPTION = N'what is this?';
        COMMIT;
    END
END
GO
CREATE PROCEDURE dbo.PlaceOrder @order xml
AS
    DECLARE @handle uniqueidentifier;
    BEGIN DIALOG CONVERSATION @handle
        FROM SERVICE [//shop/Shop]
        TO SERVICE N'//shop/Packing', N'CURRENT DATABASE'
        ON CONTRACT [//shop/Orders]
        WITH ENCRYPTION = OFF, LIFETIME = 600;
    SEND ON CONVERSATION @handle MESSAGE TYPE [//shop/Order] (@order);
GO
SELECT * FROM dbo.PackingQueue;
SELECT state_desc FROM sys.conversation_endpoints;
GO
